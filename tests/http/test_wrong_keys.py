"""Wrong tokens and keys are counted, slowed and told of; right ones beside them are not."""

import base64
import json
import logging
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import anyio
import pytest
from site_support import TOKENS, Served
from starlette.types import Message, Receive, Scope, Send
from support import SAMPLES, server_url, stop

from runner.http.responses import refused
from runner.http.wrong_keys import WrongKeys, WrongOnes, of_address

WRONG = {"authorization": "Bearer hunter2-hunter2-hunter2"}


def test_backoff_doubles_to_bound_and_is_forgotten() -> None:
    wrong = WrongOnes()
    waits = [wrong.one_more("a", now=0) for _ in range(40)]

    assert waits[:5] == [0.0] * 5
    assert waits == sorted(waits)
    assert (waits[5], waits[-1]) == (0.1, 3.0)
    assert wrong.one_more("b", now=0) == 0
    assert wrong.one_more("a", now=601) == 0


def test_remembered_failures_bounded() -> None:
    def wait_after(others: int) -> float:
        wrong = WrongOnes()
        for _ in range(5):
            wrong.one_more("known", now=0)
        for number in range(others):
            wrong.one_more(str(number), now=0)
        return wrong.one_more("known", now=0)

    assert (wait_after(4095), wait_after(4096)) == (0.1, 0.0)


def test_ipv6_network_counts_as_one_address() -> None:
    assert of_address("2001:db8::1") == of_address("2001:db8::ffff:1") != of_address("2001:db8:0:1::1")
    assert of_address("192.0.2.1") == "192.0.2.1"


@pytest.mark.parametrize("path", ["/mcp", "/api/files", "/api/files/download/art_1?token=hunter2.hunter2"])
def test_right_token_answered_while_wrong_ones_wait(
    tmp_path: Path, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served.at(tmp_path)
    ended: list[str] = []
    statuses: list[int] = []

    with served.visitor() as client:

        def ask_wrong() -> None:
            for _ in range(12):
                answer = client.request("POST" if path == "/mcp" else "GET", path, headers=WRONG)
                statuses.append(answer.status_code)
            ended.append("wrong")

        asking = threading.Thread(target=ask_wrong)
        asking.start()
        while len(statuses) < 9:
            asking.join(0.01)
        right = {"authorization": "Bearer token-of-ann-token-of-ann"}
        statuses_of_right = [client.get("/api/files", headers=right).status_code for _ in range(5)]
        ended.append("right")
        asking.join()

    assert statuses_of_right == [200] * 5
    assert set(statuses) <= {401, 403}
    assert ended == ["right", "wrong"]
    records = [record for record in caplog.records if record.name == "runner.http.wrong_keys"]
    assert 1 <= len(records) <= 3
    assert records[0].levelno == logging.WARNING
    assert sum(vars(record)["count"] for record in records) >= 1
    assert not any("hunter2" in str(vars(record)) for record in caplog.records)


def test_valid_token_without_session_not_counted_as_wrong(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served.at(tmp_path)

    def counted(**headers: str) -> tuple[int, int]:
        caplog.clear()
        with served.visitor(**headers) as client:
            status = client.get("/artifacts/art_000000000000").status_code
        return status, sum(record.name == "runner.http.wrong_keys" for record in caplog.records)

    valid = counted(authorization=f"Bearer {TOKENS['ann']}")

    assert (valid, counted(**WRONG)) == ((401, 0), (401, 1))


def named(user: object, *, claim: str = "sub") -> dict[str, str]:
    """A token that says whose it is, and proves nothing."""
    claims_part = base64.urlsafe_b64encode(json.dumps({claim: user}).encode()).decode().rstrip("=")
    return {"authorization": f"Bearer aaaa.{claims_part}.bbbb"}


class PlaygroundAuth:
    """Everything refused, behind the middleware, for requests from any address."""

    def __init__(self) -> None:
        self.guarded = WrongKeys(self.refuse, claims=("email", "sub"))

    async def refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        await refused(401, "no")(scope, receive, send)

    async def ask(self, address: str, headers: dict[str, str]) -> int:
        statuses: list[int] = []

        async def hear(message: Message) -> None:
            statuses.extend([message["status"]] if "status" in message else [])

        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": "GET", "path": "/", "headers": raw, "client": (address, 1)}
        await self.guarded(scope, anyio.sleep_forever, hear)  # type: ignore[arg-type]
        return statuses[0]


@pytest.mark.parametrize("claim", ["sub", "email"])
def test_failures_for_one_user_from_many_addresses_slowed(claim: str) -> None:
    door, ended = PlaygroundAuth(), list[str]()

    async def tried(kind: str) -> None:
        for number in range(10):
            user = "ann" if kind == "one user" else f"user-{number}"
            await door.ask(
                f"192.0.2.{number}" if kind == "one user" else f"198.51.100.{number}",
                named(user, claim=claim),
            )
        ended.append(kind)

    async def both() -> float:
        began = time.monotonic()
        async with anyio.create_task_group() as group:
            group.start_soon(tried, "one user")
            group.start_soon(tried, "many users")
        return time.monotonic() - began

    took_s = anyio.run(both)

    # The control is beside it: as many for as many users, of whom none is waited for.
    assert ended == ["many users", "one user"]
    assert took_s >= 0.1 + 0.2 + 0.4 + 0.8 + 1.6


def test_failure_log_names_most_tried_user_escaped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    door = PlaygroundAuth()

    anyio.run(door.ask, "192.0.2.1", named("ann\x1b[2J" + "x" * 100))

    record = vars(caplog.records[-1])
    assert (record["named"], record["most_for"]) == (1, "ann\\x1b[2J" + "x" * 57)


@pytest.mark.parametrize("token", [named(7), named(None), named("ann", claim="name"), WRONG])
def test_token_naming_no_user_counts_for_its_address(
    token: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    assert anyio.run(PlaygroundAuth().ask, "192.0.2.1", token) == 401

    assert vars(caplog.records[-1])["named"] == 0


def test_failures_for_link_and_its_user_count_together(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served.at(tmp_path)
    real = served.site.tokens.sign(user="ann", key="art_1", purpose="download", now=1e9, ttl_s=1)

    with served.visitor() as client:
        assert client.get("/api/files/download/art_1", params={"token": real + "x"}).status_code == 403

    records = [vars(record) for record in caplog.records if record.name == "runner.http.wrong_keys"]
    assert (records[0]["named"], records[0]["kinds"]) == (2, "link 1")


def test_invalid_forwarded_address_counts_as_one_address() -> None:
    assert of_address("x" * 10_000) == of_address("anything") == of_address("")
    # The control: addresses are told apart.
    assert of_address("192.0.2.1") != of_address("192.0.2.2")


@pytest.mark.release
def test_forwarded_address_used_behind_local_proxy(tmp_path: Path) -> None:
    tokens = tmp_path / "users.json"
    tokens.write_text(json.dumps({TOKENS["ann"]: "ann"}))
    tokens.chmod(0o600)
    environment = os.environ | {
        "RUNNER_STATE_DIR": str(tmp_path / "state"),
        "RUNNER_STORE": (tmp_path / "store").as_uri(),
        "RUNNER_AUTH__KIND": "static",
        "RUNNER_AUTH__TOKENS_FILE": str(tokens),
    }
    command = [
        sys.executable,
        "-m",
        "runner.cli.app",
        "serve",
        str(SAMPLES / "hello.py"),
        "--transport",
        "http",
    ]
    server = subprocess.Popen(
        [*command, "--port", "0"],
        env=environment,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    ended: list[str] = []

    def ask(kind: str) -> None:
        for number in range(10):
            forwarded = "198.51.100.1" if kind == "one address" else f"203.0.113.{number}"
            request = urllib.request.Request(
                files, headers=WRONG | {"X-Forwarded-For": f"10.9.9.9, {forwarded}"}
            )
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(request, timeout=180)
        ended.append(kind)

    try:
        files = server_url(server).removesuffix("/mcp") + "/api/files"
        both = [threading.Thread(target=ask, args=(kind,)) for kind in ("one address", "many addresses")]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
    finally:
        stop(server)

    assert ended == ["many addresses", "one address"]
