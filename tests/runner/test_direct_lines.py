"""Calls over stdio that are answered directly: the same lines as through the SDK, whatever is sent."""

import asyncio
import contextlib
import json
import os
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support import becomes, settings_in

from runner.cell import Cell
from runner.direct import DirectCall
from runner.direct_lines import DirectLines
from runner.host import make_host
from runner.internals import serve_streams
from runner.lines import IncomingLines, OutgoingLines

pytestmark = pytest.mark.anyio

TOOLS = Path(__file__).parents[1] / "tools" / "usual.py"
HOME = Path(f"/tmp/t-{uuid.uuid4().hex[:12]}")
META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def cell(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cell]:
    folder = tmp_path_factory.mktemp("direct-lines")
    folder.chmod(0o700)
    async with Cell.open(settings_in(folder, user=HOME.name), [str(TOOLS)]) as opened:
        yield opened


@dataclass
class Line:
    """A client's end of a server on two pipes."""

    into: int
    out: int
    taken: list[str]
    said: list[dict[str, Any]] = field(default_factory=list)
    _rest: bytes = b""

    def write(self, *messages: Any) -> None:
        for message in messages:
            raw = message if isinstance(message, bytes) else json.dumps(message).encode()
            os.write(self.into, raw + b"\n")

    def leave(self) -> None:
        if self.into >= 0:
            os.close(self.into)
        # The number may be somebody else's from now on.
        self.into = -1

    def answers(self) -> list[Any]:
        """Return what has come so far, in its order."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.out, 1 << 16):
                *whole, self._rest = (self._rest + data).split(b"\n")
                self.said += [json.loads(line) for line in whole]
        return self.said


@contextlib.asynccontextmanager
async def served(cell: Cell, *, directly: bool) -> AsyncIterator[Line]:
    to_server, into = os.pipe()
    out, from_server = os.pipe()
    for descriptor in (to_server, out, from_server):
        os.set_blocking(descriptor, False)
    host, taken = make_host(cell, transport="stdio", download_url=None), list[str]()
    answer = host.direct.answer

    async def noted(call: DirectCall) -> dict[str, Any]:
        taken.append(call.params["name"])
        return await answer(call)

    host.direct.answer = noted  # type: ignore[method-assign]
    lines, answers = IncomingLines(to_server), OutgoingLines(from_server)
    incoming = DirectLines(lines, answers, host.direct) if directly else lines
    serving = asyncio.create_task(serve_streams(host, incoming, answers))
    line = Line(into=into, out=out, taken=taken)
    try:
        yield line
    finally:
        line.leave()
        await serving
        for descriptor in (to_server, out, from_server):
            os.close(descriptor)


def message(tool: str, arguments: Any = None, *, id: Any = 7, **more: Any) -> dict[str, Any]:  # noqa: A002
    params = {"name": tool, "arguments": arguments or {}, "_meta": META, **more.pop("params", {})}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params, **more}


DISCOVER = {"jsonrpc": "2.0", "id": "d", "method": "server/discover", "params": {"_meta": META}}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": "i",
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "tests", "version": "1"},
    },
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


async def said(cell: Cell, sent: list[Any], *, directly: bool) -> tuple[list[Any], list[str]]:
    """Return what a server says to these messages, one after the other, and which calls came directly."""
    async with served(cell, directly=directly) as line:
        asked = 0
        for each in sent:
            line.write(each)
            asked += "id" in each
            assert await becomes(lambda: len(finals(line.answers())) >= asked)  # noqa: B023 - waited for here
        return [unsealed(answer) for answer in line.answers()], line.taken


def busy(cell: Cell) -> bool:
    seats = [task.result() for task in cell._seats.values() if task.done()]
    return any(seat.calls for seat in seats)


def finals(messages: list[Any]) -> list[Any]:
    return [each for each in messages if "id" in each]


def unsealed(answer: dict[str, Any]) -> dict[str, Any]:
    result = answer.get("result")
    if isinstance(result, dict) and "requestState" in result:
        assert "secret" not in result["requestState"]
        return {**answer, "result": {**result, "requestState": "sealed"}}
    return answer


TOMORROW = {**META, "io.modelcontextprotocol/protocolVersion": "2030-01-01"}
LOGGED = {**META, "io.modelcontextprotocol/logLevel": "info"}
NOTHING: dict[str, Any] = {"jsonrpc": "2.0", "nothing": 1}
BARE = {**message("echo"), "params": {"name": "echo"}}

DIRECT: Mapping[str, dict[str, Any]] = {
    "a call": message("echo", {"value": "ü\u2028\ud83d\ude00"}),
    "an id that is text": message("echo", {"value": 1}, id="seven"),
    "values of every kind": message("echo", {"value": [None, True, 1.5, 1e300, {"a": None, "b": {}}, 2**70]}),
    "an argument of a wrong type": message("steps", {"count": "many"}),
    "a tool that fails": message("fails"),
    "steps that nobody wants to hear of": message("steps", {"count": 2}),
    "steps": message("steps", {"count": 3}, params={"_meta": {**META, "progressToken": "p"}}),
    "a question": message("asks"),
    "headers, where there are none": message("headers"),
    "a stranger's capabilities": message(
        "echo", params={"_meta": {**META, "io.modelcontextprotocol/clientCapabilities": 5}}
    ),
}


@pytest.mark.parametrize("name", DIRECT)
async def test_a_usual_call_is_answered_directly_and_word_by_word_as_by_the_sdk(
    cell: Cell, name: str
) -> None:
    sent = [DISCOVER, DIRECT[name]]

    directly, taken = await said(cell, sent, directly=True)
    plainly, _ = await said(cell, sent, directly=False)

    assert directly == plainly
    assert taken == [DIRECT[name]["params"]["name"]]


UNUSUAL: Mapping[str, list[Any]] = {
    "the first request": [message("echo")],
    "a client of the handshake": [INITIALIZE, INITIALIZED, {**message("echo"), "params": {"name": "echo"}}],
    "a client of the handshake with an envelope": [INITIALIZE, INITIALIZED, message("echo")],
    "an unknown tool": [DISCOVER, message("nothing")],
    "another version": [DISCOVER, message("echo", params={"_meta": TOMORROW})],
    "a later round": [DISCOVER, message("asks", params={"requestState": "x", "inputResponses": {}})],
    "no envelope": [DISCOVER, BARE],
    "messages wanted": [DISCOVER, message("steps", {"count": 1}, params={"_meta": LOGGED})],
    "no message": [DISCOVER, NOTHING, {**DISCOVER, "id": "e"}],
}


@pytest.mark.parametrize("name", UNUSUAL)
async def test_an_unusual_message_goes_to_the_sdk(cell: Cell, name: str) -> None:
    sent = UNUSUAL[name]

    directly, taken = await said(cell, sent, directly=True)
    plainly, _ = await said(cell, sent, directly=False)

    assert directly == plainly
    assert taken == []


@pytest.mark.parametrize("directly", [True, False])
async def test_a_call_that_is_cancelled_ends_and_is_never_answered(cell: Cell, *, directly: bool) -> None:
    mark = f"cancelled-{directly}"
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}

    async with served(cell, directly=directly) as line:
        line.write(DISCOVER)
        assert await becomes(lambda: len(line.answers()) == 1)
        line.write(message("told", {"mark": mark}))
        assert await becomes((HOME / mark).exists), line.answers()[1:]
        line.write(cancel)
        assert await becomes(lambda: not busy(cell))
        line.write({**message("echo"), "id": 8})
        assert await becomes(lambda: len(line.answers()) == 2)
        ids = [answer["id"] for answer in line.answers()]

    assert ids == ["d", 8]


@pytest.mark.parametrize("directly", [True, False])
async def test_a_call_under_way_when_the_client_leaves_ends_with_an_error(
    cell: Cell, *, directly: bool
) -> None:
    mark = f"left-{directly}"

    async with served(cell, directly=directly) as line:
        line.write(DISCOVER)
        assert await becomes(lambda: len(line.answers()) == 1)
        line.write(message("told", {"mark": mark}))
        assert await becomes((HOME / mark).exists), line.answers()[1:]
        line.leave()
        assert await becomes(lambda: len(line.answers()) == 2)
        last = line.answers()[-1]

    assert (last["id"], last["error"]["message"]) == (7, "Connection closed")


async def test_calls_run_beside_each_other_and_two_of_one_id_are_both_answered(cell: Cell) -> None:
    async with served(cell, directly=True) as line:
        line.write(DISCOVER, *(message("echo", {"value": n}, id=n) for n in range(4)), message("echo", id=3))
        assert await becomes(lambda: len(line.answers()) == 6)
        ids = sorted(str(answer["id"]) for answer in line.answers())

    assert ids == ["0", "1", "2", "3", "3", "d"]
