"""Hosts behind a load balancer, over HTTP: what one gives out holds where its state folder is, only there.

With state folders of their own nothing that one host has given out opens anything at another, and a client
receives an answer after which it initializes again.
"""

import signal
import time
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import httpx2
import pytest
from fleet_world import ADD, INITIALIZE, LIST, World, host_process, mcp, wait_until

from runner.http.identify import COOKIE
from runner.users.capability_tokens import Tokens

pytestmark = [pytest.mark.needs_s3, pytest.mark.release]

ANN = "token-of-ann-which-is-long-enough"
TOKENS = {ANN: "ann"}


def _status(base: str, cookie: str) -> int:
    return httpx2.get(f"{base}/api/files", headers={"Cookie": f"{COOKIE}={cookie}"}, timeout=180).status_code


def test_host_credentials_are_valid_for_its_state_folder_only(world: World) -> None:
    both, own = world.folder / "shared-state", world.folder / "own-state"
    with ExitStack() as hosts:
        a, b = (
            hosts.enter_context(host_process(world, name, TOKENS, state_dir=both)).base for name in ("a", "b")
        )
        apart = hosts.enter_context(host_process(world, "c", TOKENS, state_dir=own)).base

        bearer = {"Authorization": f"Bearer {ANN}"}
        cookie = httpx2.post(f"{a}/api/session", headers=bearer, timeout=180).cookies[COOKIE]
        logged_in = [_status(base, cookie) for base in (a, b, apart)]

        put = httpx2.post(f"{a}/api/files?filename=f.txt", content=b"text", headers=bearer, timeout=180)
        assert put.status_code in (200, 201), put.text
        listed = [
            httpx2.get(f"{base}/api/files", headers=bearer, timeout=180).json() for base in (a, b, apart)
        ]
        (file,) = listed[0]["files"]
        link = httpx2.post(f"{a}/api/files/{file['key']}/link", json={}, headers=bearer, timeout=180).json()[
            "url"
        ]
        fetched = [httpx2.get(f"{base}{link}", timeout=180) for base in (a, b, apart)]

        in_session = {"Cookie": f"{COOKIE}={cookie}"}
        with httpx2.stream("GET", f"{a}/events", headers=in_session, timeout=180) as stream:
            events = stream.iter_text()
            listening = next(events)
            ended = httpx2.delete(f"{b}/api/session", headers=in_session, timeout=180)
            # The stream ends with the session; else it would send a keep-alive every 15 seconds.
            after = list(islice(events, 5))
        logged_out = [_status(base, cookie) for base in (a, b, apart)]

        Tokens(both / "tokens.json").revoke(["ann"], now=time.time() + 1)
        revoked = [httpx2.get(f"{base}{link}", timeout=180).status_code for base in (a, b, apart)]

    assert logged_in == [200, 200, 401]
    assert all([each["filename"] for each in one["files"]] == ["f.txt"] for one in listed)
    assert [one.status_code == 200 for one in fetched] == [True, True, False]
    assert fetched[1].content == b"text"
    assert "listening" in listening
    assert len(after) < 5, after
    assert (ended.status_code, logged_out) == (204, [401, 401, 401])
    assert 200 not in revoked


def test_mcp_session_of_other_host_is_unknown_and_replaced(world: World) -> None:
    with ExitStack() as hosts:
        a, b = (hosts.enter_context(host_process(world, name, TOKENS)).base for name in "ab")

        session = mcp(a, INITIALIZE, None, ANN).headers["mcp-session-id"]
        here, there = mcp(a, LIST, session, ANN), mcp(b, LIST, session, ANN)
        ended = httpx2.delete(
            f"{b}/mcp",
            headers={"Authorization": f"Bearer {ANN}", "Mcp-Session-Id": session},
            timeout=180,
        )
        still = mcp(a, LIST, session, ANN)
        reopened = mcp(b, INITIALIZE, None, ANN)

    assert (here.status_code, there.status_code) == (200, 404)
    assert ended.status_code == 404
    assert still.status_code == 200
    assert reopened.status_code == 200
    assert reopened.headers["mcp-session-id"] != session


def test_per_host_limit_is_used_up_at_each_host(world: World) -> None:
    world.node("one")
    with ExitStack() as hosts:
        a, b = (
            hosts.enter_context(host_process(world, name, TOKENS, audit_dir=world.folder / name / "audit"))
            for name in "ab"
        )
        # The 101st session of a user at one host ends the first there, and none at the other.
        of_a = [mcp(a.base, INITIALIZE, None, ANN).headers["mcp-session-id"] for _ in range(101)]
        of_b = [mcp(b.base, INITIALIZE, None, ANN).headers["mcp-session-id"] for _ in range(100)]
        open_at_a = [mcp(a.base, LIST, session, ANN).status_code for session in of_a]
        open_at_b = [mcp(b.base, LIST, session, ANN).status_code for session in of_b]

        called = mcp(a.base, ADD, of_a[2], ANN)
        # Nobody waits for a record.
        wait_until(lambda: '"add"' in _audited(a.folder) + _audited(b.folder))
        audited = [_audited(host.folder) for host in (a, b)]

        a.tokens.write_text("{}")
        a.process.send_signal(signal.SIGHUP)
        wait_until(lambda: mcp(a.base, LIST, of_a[2], ANN).status_code == 401)
        still = mcp(b.base, LIST, of_b[1], ANN)

    assert open_at_a == [404] + [200] * 100
    assert open_at_b == [200] * 100
    assert called.status_code == 200
    assert "3" in called.text
    assert [text.count('"add"') for text in audited] == [1, 0]
    assert still.status_code == 200


def _audited(folder: Path) -> str:
    return "".join(file.read_text() for file in sorted((folder / "audit").glob("*.jsonl")))
