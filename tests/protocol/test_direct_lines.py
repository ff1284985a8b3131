"""Calls over stdio that are answered directly: the same lines as through the SDK, whatever is sent."""

import asyncio
import contextlib
import fcntl
import json
import os
import re
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from direct_cases import (
    CASES,
    DISCOVER,
    IN_SESSIONS,
    INITIALIZE,
    INITIALIZED,
    META,
    initialize,
    message,
    plain,
)
from support import becomes, settings_in

from runner.protocol.direct import DirectCall
from runner.protocol.direct_stdio import DirectLines
from runner.protocol.internals.host import serve_streams
from runner.protocol.lines import IncomingLines, OutgoingLines
from runner.server.host import make_host
from runner.toolset.toolset import Toolset
from sandbox.host.pool import Pool

pytestmark = pytest.mark.anyio

TOOLS = Path(__file__).parents[1] / "tools" / "usual.py"
HOME = Path(f"/tmp/t-{uuid.uuid4().hex[:12]}")


@pytest.fixture(scope="module")
async def toolset(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Toolset]:
    folder = tmp_path_factory.mktemp("direct-lines")
    folder.chmod(0o700)
    settings = settings_in(folder, user=HOME.name, worker_reuse="call")
    async with Toolset.open(settings, [str(TOOLS)]) as opened:
        yield opened


@dataclass
class Line:
    """A client's end of a server on two pipes."""

    into: int
    out: int
    taken: list[str]
    messages: list[dict[str, Any]] = field(default_factory=list)
    _rest: bytes = b""

    def write(self, *messages: Any) -> None:
        for each in messages:
            raw = each if isinstance(each, bytes) else json.dumps(each).encode()
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
                self.messages += [json.loads(line) for line in whole]
        return self.messages


@contextlib.asynccontextmanager
async def served(toolset: Toolset, *, directly: bool) -> AsyncIterator[Line]:
    to_server, into = os.pipe()
    out, from_server = os.pipe()
    # Room for the longest message: who writes it cannot wait for who reads it, in the same thread.
    fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, 1 << 20)
    for descriptor in (to_server, out, from_server):
        os.set_blocking(descriptor, False)
    host, taken = make_host(toolset, transport="stdio", download_url=None), list[str]()
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


async def replies(
    toolset: Toolset, sent: list[Any], *, directly: bool, ignored: Sequence[Any] = ()
) -> tuple[list[Any], list[str]]:
    """Return what a server says to these messages, one after the other, and which calls came directly.

    Those that are `ignored` are not waited for.
    """
    async with served(toolset, directly=directly) as line:
        number = 0
        for each in sent:
            line.write(each)
            number += "id" in each and each not in ignored
            assert await becomes(lambda: len(finals(line.answers())) >= number)  # noqa: B023 - waited for here
        return [unsealed(answer) for answer in line.answers()], line.taken


def busy(toolset: Toolset) -> bool:
    return toolset.admission.counts[0] > 0


def finals(messages: list[Any]) -> list[Any]:
    return [each for each in messages if "id" in each]


def unsealed(answer: dict[str, Any]) -> dict[str, Any]:
    result = answer.get("result")
    if isinstance(result, dict) and "requestState" in result:
        assert "secret" not in result["requestState"]
        return {**answer, "result": {**result, "requestState": "sealed"}}
    return answer


# Asked after everything else, so that its answer shows that what came before has been read.
LAST = {**DISCOVER, "id": "last"}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.by_stdio is True])
async def test_usual_call_direct_answer_equals_sdk_answer(toolset: Toolset, name: str) -> None:
    case = CASES[name]
    sent = [*case.before, case.message]

    directly, taken = await replies(toolset, sent, directly=True)
    plainly, _ = await replies(toolset, sent, directly=False)

    assert directly == plainly
    assert taken == [case.message["params"]["name"]]


ERAS = pytest.mark.parametrize(
    ("greeting", "envelope"),
    [([DISCOVER], {"_meta": META}), ([INITIALIZE, INITIALIZED], {})],
    ids=["modern", "handshake"],
)


def echoing(value: Any, envelope: Mapping[str, Any]) -> dict[str, Any]:
    return {**message("echo"), "params": {"name": "echo", "arguments": {"value": value}, **envelope}}


async def no_worker(*_args: object) -> None:
    pytest.fail("a worker was taken")


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
@ERAS
async def test_non_json_number_refused_without_worker(
    toolset: Toolset,
    greeting: list[Any],
    envelope: Mapping[str, Any],
    number: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = json.dumps(echoing(["here"], envelope)).encode()
    async with served(toolset, directly=True) as line:
        line.write(*greeting)
        assert await becomes(lambda: len(finals(line.answers())) == 1)
        line.write(usual)
        assert await becomes(lambda: len(finals(line.answers())) == 2)
        monkeypatch.setattr(Pool, "lease", no_worker)
        line.write(usual.replace(b'"here"', number.encode()))
        assert await becomes(lambda: len(finals(line.answers())) == 3)
        _, fine, refused = finals(line.answers())

    reply = json.loads(refused["result"]["content"][0]["text"])
    assert not fine["result"]["isError"]
    assert reply["meta_data"]["error_code"] == "E_INVALID_ARGUMENT"
    assert re.fullmatch(
        r"value\[0\] is (NaN|-?Infinity), which is not a JSON value; send a finite number, null or text",
        reply["results"]["error"],
    )


@ERAS
async def test_call_with_lone_surrogate_is_answered(
    toolset: Toolset, greeting: list[Any], envelope: Mapping[str, Any]
) -> None:
    answers, _ = await replies(toolset, [*greeting, echoing("a\ud800b", envelope)], directly=True)

    assert answers[-1]["result"]["_meta"]["toolcell/result"] == {"results": "a?b"}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.by_stdio is False])
async def test_unusual_message_goes_to_sdk(toolset: Toolset, name: str) -> None:
    case = CASES[name]
    sent = [*case.before, case.message, LAST]
    ignored = [] if case.is_answered else [case.message]

    directly, taken = await replies(toolset, sent, ignored=ignored, directly=True)
    plainly, _ = await replies(toolset, sent, ignored=ignored, directly=False)

    assert directly == plainly
    assert taken == []


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.by_stdio is not None])
async def test_first_message_selects_same_era_as_sdk(toolset: Toolset, name: str) -> None:
    case = CASES[name]
    # If the first was not a request, the second decides.
    sent = [case.message, message("echo", id="second"), message("echo", id="third")]
    ignored = [] if case.is_answered else [case.message]

    directly, taken = await replies(toolset, sent, ignored=ignored, directly=True)
    plainly, _ = await replies(toolset, sent, ignored=ignored, directly=False)

    assert directly == plainly
    assert bool(taken) == ("result" in plainly[-1])


@pytest.mark.parametrize(
    "version",
    [
        pytest.param("2025-03-26", marks=pytest.mark.release),
        pytest.param("2025-06-18", marks=pytest.mark.release),
        "2025-11-25",
    ],
)
@pytest.mark.parametrize("name", [name for name, case in IN_SESSIONS.items() if case.by_stdio is not None])
async def test_message_after_handshake_answer_equals_sdk_answer(
    toolset: Toolset, name: str, version: str
) -> None:
    case = IN_SESSIONS[name]
    last = {"jsonrpc": "2.0", "id": "last", "method": "ping"}
    sent = [initialize(version), INITIALIZED, case.message, last]
    ignored = [] if case.is_answered else [case.message]

    directly, taken = await replies(toolset, sent, ignored=ignored, directly=True)
    plainly, _ = await replies(toolset, sent, ignored=ignored, directly=False)

    assert directly == plainly
    assert bool(taken) == case.by_stdio


OPENINGS = pytest.mark.parametrize(
    ("opening", "form"),
    [((DISCOVER,), message), ((INITIALIZE, INITIALIZED), plain)],
    ids=["modern", "handshake"],
)
BOTH = pytest.mark.parametrize("directly", [True, False], ids=["directly", "by the SDK"])


@OPENINGS
@BOTH
async def test_cancelled_call_ends_and_is_never_answered(
    toolset: Toolset, opening: Sequence[Any], form: Any, *, directly: bool
) -> None:
    mark = uuid.uuid4().hex
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}

    async with served(toolset, directly=directly) as line:
        line.write(*opening)
        assert await becomes(lambda: len(line.answers()) == 1)
        line.write(form("told", {"mark": mark}))
        assert await becomes((HOME / mark).exists), line.answers()[1:]
        line.write(cancel)
        assert await becomes(lambda: not busy(toolset))
        line.write({**form("echo"), "id": 8})
        assert await becomes(lambda: len(line.answers()) == 2)
        ids = [answer["id"] for answer in line.answers()]

    assert ids == [opening[0]["id"], 8]
    assert line.taken == (["told", "echo"] if directly else [])


@OPENINGS
@BOTH
async def test_call_in_flight_at_disconnect_ends_with_error(
    toolset: Toolset, opening: Sequence[Any], form: Any, *, directly: bool
) -> None:
    mark = uuid.uuid4().hex

    async with served(toolset, directly=directly) as line:
        line.write(*opening)
        assert await becomes(lambda: len(line.answers()) == 1)
        line.write(form("told", {"mark": mark}))
        assert await becomes((HOME / mark).exists), line.answers()[1:]
        line.leave()
        assert await becomes(lambda: len(line.answers()) == 2)
        last = line.answers()[-1]

    assert (last["id"], last["error"]["message"]) == (7, "Connection closed")


@BOTH
async def test_tool_questions_and_notices_arrive_in_order(toolset: Toolset, *, directly: bool) -> None:
    async with served(toolset, directly=directly) as line:
        line.write(initialize("2025-11-25", elicitation={}), INITIALIZED)
        assert await becomes(lambda: len(line.answers()) == 1)
        line.write(plain("wonders", params={"_meta": {"progressToken": 1}}))
        for number in (1, 2):
            assert await becomes(lambda: len(finals(line.answers())) == number + 1)  # noqa: B023
            question = finals(line.answers())[-1]
            line.write({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}})
        assert await becomes(lambda: len(finals(line.answers())) == 4)
        messages = line.answers()[1:]

    assert line.taken == (["wonders"] if directly else [])
    assert [each.get("method", "answer") for each in messages] == [
        "notifications/progress",
        "elicitation/create",
        "notifications/progress",
        "elicitation/create",
        "notifications/message",
        "answer",
    ]
    assert messages[-1]["result"]["structuredContent"] == {"result": "None None"}


@BOTH
async def test_tool_asks_model_and_person_of_its_client(toolset: Toolset, *, directly: bool) -> None:
    written = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "written"}}
    agreed = {"action": "accept", "content": {"value": "more"}}
    async with served(toolset, directly=directly) as line:
        line.write(initialize("2025-11-25", elicitation={}, sampling={}), INITIALIZED)
        assert await becomes(lambda: len(line.answers()) == 1)
        line.write(plain("draws"))
        for number, reply in enumerate((written, agreed, written), start=1):
            assert await becomes(lambda: len(finals(line.answers())) == number + 1)  # noqa: B023
            question = finals(line.answers())[-1]
            line.write({"jsonrpc": "2.0", "id": question["id"], "result": reply})
        assert await becomes(lambda: len(finals(line.answers())) == 5)
        answer = line.answers()[-1]

    assert line.taken == (["draws"] if directly else [])
    assert answer["result"]["structuredContent"]["drawn"] == ["written", "written"]


async def test_calls_run_concurrently_and_duplicate_ids_both_answered(toolset: Toolset) -> None:
    async with served(toolset, directly=True) as line:
        line.write(DISCOVER, *(message("echo", {"value": n}, id=n) for n in range(4)), message("echo", id=3))
        assert await becomes(lambda: len(line.answers()) == 6)
        ids = sorted(str(answer["id"]) for answer in line.answers())

    assert ids == ["0", "1", "2", "3", "3", "d"]
