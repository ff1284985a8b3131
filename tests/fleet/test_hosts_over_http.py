"""Hosts behind a load balancer, over HTTP: what one gives out holds where its state folder is, only there.

With state folders of their own nothing that one host has given out opens anything at another, and a client
is told so in a way in which it begins anew.
"""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import httpx2
from fleet_world import TOOLS, World, wait_until

from runner.http.identify import COOKIE
from runner.users.capability_tokens import Tokens

ANN = "token-of-ann-which-is-long-enough"
PROTOCOL = "2025-11-25"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": PROTOCOL,
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}


@contextmanager
def _host(world: World, name: str, state: Path) -> Iterator[str]:
    """Run a host as a process; yield its address."""
    world.settings(name)
    folder = world.folder / name
    tokens = folder / "auth.json"
    tokens.write_text(json.dumps({ANN: "ann"}))
    tokens.chmod(0o600)
    config = folder / "runner.toml"
    config.write_text(f'[auth]\nkind = "static"\ntokens_file = "{tokens}"\n')
    log = folder / "log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "runner",
                "serve",
                str(TOOLS),
                "--transport",
                "http",
                "--port",
                "0",
                "--config",
                str(config),
            ],
            env=world.environment(name, state_dir=state),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    try:
        wait_until(lambda: "/mcp" in log.read_text() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        words = log.read_text().split()
        yield next(word for word in words if word.endswith("/mcp")).removesuffix("/mcp")
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()


def _mcp(base: str, message: Mapping[str, Any], session: str | None = None) -> httpx2.Response:
    headers = {
        "Authorization": f"Bearer {ANN}",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": PROTOCOL,
        **({} if session is None else {"Mcp-Session-Id": session}),
    }
    return httpx2.post(f"{base}/mcp", json=message, headers=headers, timeout=60)


def _status(base: str, cookie: str) -> int:
    return httpx2.get(f"{base}/api/files", headers={"Cookie": f"{COOKIE}={cookie}"}, timeout=60).status_code


def test_what_a_host_gives_out_holds_where_its_state_folder_is_and_nowhere_else(world: World) -> None:
    both, own = world.folder / "shared-state", world.folder / "own-state"
    with ExitStack() as hosts:
        a, b = (hosts.enter_context(_host(world, name, both)) for name in ("a", "b"))
        apart = hosts.enter_context(_host(world, "c", own))

        bearer = {"Authorization": f"Bearer {ANN}"}
        cookie = httpx2.post(f"{a}/api/session", headers=bearer, timeout=60).cookies[COOKIE]
        logged_in = [_status(base, cookie) for base in (a, b, apart)]

        put = httpx2.post(f"{a}/api/files?filename=f.txt", content=b"text", headers=bearer, timeout=60)
        assert put.status_code in (200, 201), put.text
        listed = [
            httpx2.get(f"{base}/api/files", headers=bearer, timeout=60).json() for base in (a, b, apart)
        ]
        (file,) = listed[0]["files"]
        link = httpx2.post(f"{a}/api/files/{file['key']}/link", json={}, headers=bearer, timeout=60).json()[
            "url"
        ]
        fetched = [httpx2.get(f"{base}{link}", timeout=60) for base in (a, b, apart)]

        in_session = {"Cookie": f"{COOKIE}={cookie}"}
        with httpx2.stream("GET", f"{a}/events", headers=in_session, timeout=60) as stream:
            heard = stream.iter_text()
            listening = next(heard)
            ended = httpx2.delete(f"{b}/api/session", headers=in_session, timeout=60)
            # It ends with the session; else it would say every 15 seconds that it is alive.
            after = list(islice(heard, 5))
        logged_out = [_status(base, cookie) for base in (a, b, apart)]

        Tokens(both / "tokens.json").revoke(["ann"], now=time.time() + 1)
        revoked = [httpx2.get(f"{base}{link}", timeout=60).status_code for base in (a, b, apart)]

    assert logged_in == [200, 200, 401]
    assert all([each["filename"] for each in one["files"]] == ["f.txt"] for one in listed)
    assert [one.status_code == 200 for one in fetched] == [True, True, False]
    assert fetched[1].content == b"text"
    assert "listening" in listening
    assert len(after) < 5, after
    assert (ended.status_code, logged_out) == (204, [401, 401, 401])
    assert 200 not in revoked


def test_an_mcp_session_of_another_host_is_not_known_and_its_client_begins_anew(world: World) -> None:
    with ExitStack() as hosts:
        a, b = (hosts.enter_context(_host(world, name, world.folder / f"{name}-state")) for name in "ab")

        session = _mcp(a, INITIALIZE).headers["mcp-session-id"]
        here, there = _mcp(a, LIST, session), _mcp(b, LIST, session)
        ended = httpx2.delete(
            f"{b}/mcp",
            headers={"Authorization": f"Bearer {ANN}", "Mcp-Session-Id": session},
            timeout=60,
        )
        still = _mcp(a, LIST, session)
        anew = _mcp(b, INITIALIZE)

    assert (here.status_code, there.status_code) == (200, 404)
    assert ended.status_code == 404
    assert still.status_code == 200
    assert anew.status_code == 200
    assert anew.headers["mcp-session-id"] != session
