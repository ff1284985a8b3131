"""Calls over stdio: cancelled, cut off, questioned, at once; as the SDK treats them."""

import json
import re
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
from mcp_requests import DISCOVER, INITIALIZE, INITIALIZED, META, initialize, modern, plain
from support import becomes
from two_servers import HOME, finals, opened_in, served

from runner.toolset.toolset import Toolset
from sandbox.host.pool import Pool

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def toolset(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Toolset]:
    async with opened_in(tmp_path_factory.mktemp("lines")) as opened:
        yield opened.toolset


async def replies(toolset: Toolset, sent: list[Any], *, directly: bool) -> tuple[list[Any], list[str]]:
    """Return the answers of a server to messages, one after the other, and the calls without the SDK."""
    async with served(toolset, directly=directly) as line:
        number = 0
        for each in sent:
            line.write(each)
            number += "id" in each
            assert await becomes(lambda: len(finals(line.answers())) >= number)  # noqa: B023 - waited for here
        return line.answers(), line.taken


def busy(toolset: Toolset) -> bool:
    return toolset.admission.counts[0] > 0


ERAS = pytest.mark.parametrize(
    ("greeting", "envelope"),
    [([DISCOVER], {"_meta": META}), ([INITIALIZE, INITIALIZED], {})],
    ids=["modern", "handshake"],
)


def echoing(value: Any, envelope: Mapping[str, Any]) -> dict[str, Any]:
    return {**modern("echo"), "params": {"name": "echo", "arguments": {"value": value}, **envelope}}


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


OPENINGS = pytest.mark.parametrize(
    ("opening", "form"),
    [((DISCOVER,), modern), ((INITIALIZE, INITIALIZED), plain)],
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
        line.write(form("blocks", {"mark": mark}))
        assert await becomes((HOME / mark).exists), line.answers()[1:]
        line.write(cancel)
        assert await becomes(lambda: not busy(toolset))
        line.write({**form("echo"), "id": 8})
        assert await becomes(lambda: len(line.answers()) == 2)
        ids = [answer["id"] for answer in line.answers()]

    assert ids == [opening[0]["id"], 8]
    assert line.taken == (["blocks", "echo"] if directly else [])


@OPENINGS
@BOTH
async def test_call_in_flight_at_disconnect_ends_with_error(
    toolset: Toolset, opening: Sequence[Any], form: Any, *, directly: bool
) -> None:
    mark = uuid.uuid4().hex

    async with served(toolset, directly=directly) as line:
        line.write(*opening)
        assert await becomes(lambda: len(line.answers()) == 1)
        line.write(form("blocks", {"mark": mark}))
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
        line.write(DISCOVER, *(modern("echo", {"value": n}, id=n) for n in range(4)), modern("echo", id=3))
        assert await becomes(lambda: len(line.answers()) == 6)
        ids = sorted(str(answer["id"]) for answer in line.answers())

    assert ids == ["0", "1", "2", "3", "3", "d"]
