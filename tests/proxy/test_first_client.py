"""A command behind the proxy is started once: for its first client, also over HTTP and under the contract."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from mcp_types import Implementation
from proxying import proxy_command
from support import environment_in

COUNTED = Path(__file__).with_name("counted.py")
CLIENT = {"name": "mine", "version": "3"}

Ask = Callable[..., dict[str, Any]]


@contextlib.contextmanager
def asking(folder: Path, user: str, *options: str) -> Iterator[tuple[Ask, Path]]:
    """Run the proxy on standard input; yield a function that sends it messages, and the file of starts."""
    noted = folder / "noted"
    noted.mkdir()
    starts = noted / "starts"
    command = [sys.executable, "-m", "runner", "proxy", "--isolation", "process", f"--allow-write={noted}"]
    process = subprocess.Popen(
        [*command, *options, "--", sys.executable, str(COUNTED), str(starts)],
        env=environment_in(folder, RUNNER_USER=user),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )

    def ask(method: str, until: str = "", **params: Any) -> dict[str, Any]:
        """Send a message; return its answer, or the message of the server with some words."""
        assert process.stdin is not None
        assert process.stdout is not None
        identity = {} if method.startswith("notifications/") else {"id": 1}
        message = {"jsonrpc": "2.0", "method": method, "params": params, **identity}
        print(json.dumps(message), file=process.stdin, flush=True)
        for line in process.stdout:
            answer: dict[str, Any] = json.loads(line)
            if until in line if until else "method" not in answer:
                return answer
        raise AssertionError("the proxy has ended")

    try:
        yield ask, starts
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def known(answer: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(answer["result"]["content"][0]["text"]))


@pytest.mark.release
def test_server_of_a_client_without_sessions_starts_once(folder: Path, user: str) -> None:
    def meta(name: str) -> dict[str, Any]:
        prefix = "io.modelcontextprotocol"
        about = {"clientInfo": {**CLIENT, "name": name}, "clientCapabilities": {}}
        envelope = {"protocolVersion": "2026-07-28", **about}
        return {f"{prefix}/{key}": value for key, value in envelope.items()}

    with asking(folder, user) as (ask, starts):
        ask("server/discover", _meta=meta("mine"))
        own = known(ask("tools/call", name="known", arguments={}, _meta=meta("mine")))
        before = starts.read_text()
        other = known(ask("tools/call", name="known", arguments={}, _meta=meta("other")))

        # The control: a server that was started for another client is restarted.
        assert (before, starts.read_text()) == (".", "..")
    assert (own["client"], other["client"]) == ("mine", "other")


def test_server_under_full_contract_starts_once(folder: Path, user: str) -> None:
    with asking(folder, user, "--contract", "full") as (ask, starts):
        ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=CLIENT)
        ask("notifications/initialized", until="early")
        ask("tools/call", name="known", arguments={})

        assert starts.read_text() == "."


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_server_over_http_starts_once_for_each_client(folder: Path, mode: str) -> None:
    noted = folder / "noted"
    noted.mkdir()
    starts = noted / "starts"
    options = ("--isolation", "process", f"--allow-write={noted}", "--", sys.executable, str(COUNTED))
    with proxy_command(folder, *options, str(starts)) as url:
        before = starts.exists()
        async with Client(url, mode=mode, client_info=Implementation(**CLIENT)) as first:
            own = await first.call_tool("known", {})
            once = starts.read_text()
        async with Client(url, mode=mode, client_info=Implementation(name="other", version="1")) as second:
            other = await second.call_tool("known", {})

    assert (before, once, starts.read_text()) == (False, ".", "..")
    names = [json.loads(called.content[0].text)["client"] for called in (own, other)]
    assert names == ["mine", "other"]
