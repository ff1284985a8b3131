"""Servers that say far more than anybody reads: the rest is dropped and counted, and nobody waits for it."""

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proxying import messages_of_call, over_http, over_stdio, proxied, proxy_command
from support import becomes

from runner.proxy.upstream import NotificationPace

pytestmark = [
    pytest.mark.release,
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]

CHATTY = Path(__file__).parent / "chatty.py"
MANY = 20_000
FEW = 500


class RecordingClient:
    """A client that records the messages it receives, and the number of those reported as dropped."""

    def __init__(self) -> None:
        self.passed: list[Any] = []
        self.dropped = 0

    async def message(self, notification: Any) -> None:
        report = re.match(r"(\d+) notifications of chatty were dropped", notification.data["msg"])
        if report is None:
            self.passed.append(notification.data["msg"])
        else:
            self.dropped += int(report[1])

    async def progress(self, done: float, _total: float | None, _words: str | None) -> None:
        self.passed.append(done)

    @property
    def listening(self) -> dict[str, Any]:
        return {"log_handler": self.message, "progress_handler": self.progress}


async def flooded(folder: Path, user: str, kind: str, count: int) -> tuple[RecordingClient, list[Any]]:
    client = RecordingClient()
    chatty = over_stdio("chatty", CHATTY)
    async with proxied(folder, user, chatty, mode="legacy", client=client.listening) as behind:
        answers = [
            (await behind.call_tool("flood", {"kind": kind, "count": count})).content[0].text,
            (await behind.call_tool("add", {"a": 1, "b": 2})).content[0].text,
        ]
    return client, answers


@pytest.mark.parametrize("kind", ["log", "progress"])
async def test_excess_messages_dropped_and_all_counted(folder: Path, user: str, kind: str) -> None:
    client, answers = await flooded(folder, user, kind, MANY)

    assert answers == [str(MANY), "3"]
    assert len(client.passed) + client.dropped == MANY
    assert 1000 <= len(client.passed) < MANY // 2


@pytest.mark.parametrize("kind", ["log", "progress"])
async def test_readable_messages_arrive_whole_and_in_order(folder: Path, user: str, kind: str) -> None:
    client, answers = await flooded(folder, user, kind, FEW)

    numbers = [float(re.findall(r"[0-9.]+", str(message))[0]) for message in client.passed]
    assert answers == [str(FEW), "3"]
    assert numbers == [float(number) for number in range(FEW)]
    assert client.dropped == 0


async def test_pending_client_questions_are_bounded(folder: Path, user: str) -> None:
    waiting: list[Any] = []
    answered = asyncio.Event()

    async def hold(*question: Any) -> Any:
        waiting.append(question)
        await answered.wait()
        return {}

    chatty = over_stdio("chatty", CHATTY)
    async with proxied(folder, user, chatty, mode="legacy", client={"elicitation_handler": hold}) as behind:
        first = await behind.call_tool("flood", {"kind": "question", "count": 40})
        assert await becomes(lambda: len(waiting) == 32)
        # Of one connection in order: whatever was asked before has been refused, or come, by now.
        assert (await behind.call_tool("add", {"a": 1, "b": 2})).content[0].text == "3"
        assert len(waiting) == 32
        answered.set()
        await behind.call_tool("flood", {"kind": "question", "count": 1})
        assert await becomes(lambda: len(waiting) == 33)

    assert first.content[0].text == "40"


async def test_endlessly_asking_server_loses_its_connection_only(folder: Path, user: str) -> None:
    waiting: list[Any] = []

    async def hold(*question: Any) -> Any:
        waiting.append(question)
        await asyncio.Event().wait()

    chatty = over_stdio("chatty", CHATTY)
    async with proxied(folder, user, chatty, mode="legacy", client={"elicitation_handler": hold}) as behind:
        flooded = await behind.call_tool("flood", {"kind": "question", "count": MANY}, raise_on_error=False)
        after = await behind.call_tool("add", {"a": 1, "b": 2})

    assert "Connection closed: it had too many requests of its own open" in flooded.content[0].text
    assert after.content[0].text == "3"
    assert len(waiting) <= 32


async def test_endlessly_asking_http_server_loses_its_connection(
    folder: Path, user: str, remote_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    waiting: list[Any] = []

    async def hold(*question: Any) -> Any:
        waiting.append(question)
        await asyncio.Event().wait()

    remote = over_http(remote_url)
    async with proxied(folder, user, remote, mode="legacy", client={"elicitation_handler": hold}) as behind:
        flooded = await behind.call_tool("ask_many", {"count": 1000}, raise_on_error=False)
        after = await behind.call_tool("add", {"a": 1, "b": 2})

    assert "it had too many requests of its own open" in flooded.content[0].text
    assert "connection ended: too many requests" in caplog.messages
    assert after.content[0].text == "3"
    assert len(waiting) == 32


async def test_blank_lines_ignored(folder: Path, user: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    client, answers = await flooded(folder, user, "blank", 500_000)

    assert answers == ["500000", "3"]
    assert (client.passed, client.dropped) == ([], 0)
    assert "invalid message line" not in caplog.messages


async def test_server_of_invalid_messages_loses_its_connection(
    folder: Path, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    chatty = over_stdio("chatty", CHATTY)
    async with proxied(folder, user, chatty) as behind:
        few = await behind.call_tool("flood", {"kind": "words", "count": 5_000})
        many = await behind.call_tool("flood", {"kind": "words", "count": 500_000}, raise_on_error=False)
        after = await behind.call_tool("add", {"a": 1, "b": 2})

    assert few.content[0].text == "5000"
    assert "Connection closed: it sent 10,000 lines that are not messages" in many.content[0].text
    assert caplog.messages.count("connection closed: invalid lines") == 1
    assert after.content[0].text == "3"


def test_command_survives_endless_server_output(folder: Path) -> None:
    with proxy_command(folder, "--", sys.executable, str(CHATTY)) as url:
        answers = [
            messages_of_call(url, "flood", {"kind": kind, "count": count})[-1]
            for kind, count in [("blank", 2_000_000), ("values", 1_100_000), ("words", 2_000_000)]
        ]
        after = messages_of_call(url, "add", {"a": 1, "b": 2})[-1]

    blank, values, words = map(str, answers)
    assert "2000000" in blank
    assert "made of more than 1,000,000 values" in values
    assert "it sent 10,000 lines that are not messages" in words
    assert after["result"]["content"][0]["text"] == "3"


async def test_malformed_messages_relayed_in_order_or_dropped(
    folder: Path, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    messages: list[Any] = []

    async def message(notification: Any) -> None:
        messages.append((notification.level, notification.logger, notification.data))

    chatty = over_stdio("chatty", CHATTY)
    async with proxied(folder, user, chatty, mode="legacy", client={"log_handler": message}) as behind:
        await behind.call_tool("flood", {"kind": "odd", "count": 8})
        assert (await behind.call_tool("add", {"a": 1, "b": 2})).content[0].text == "3"

    assert messages == [("info", None, {"msg": "kept", "extra": None}), ("info", None, None)]
    assert not [each for each in caplog.records if each.exc_info]


async def test_too_deeply_nested_message_dropped_question_refused(
    folder: Path, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    messages: list[Any] = []
    questions: list[Any] = []

    async def message(notification: Any) -> None:
        messages.append(notification.data)

    async def answer(_message: str, *about: Any) -> Any:
        questions.append(about)
        return {}

    hearing = {"log_handler": message, "elicitation_handler": answer}
    async with proxied(folder, user, over_stdio("chatty", CHATTY), mode="legacy", client=hearing) as behind:
        await behind.call_tool("flood", {"kind": "deep", "count": 2})
        assert (await behind.call_tool("add", {"a": 1, "b": 2})).content[0].text == "3"

    assert messages == ["left out: it nests deeper than 100 levels"]
    assert questions == []
    assert not [each for each in caplog.records if each.exc_info]


async def test_overlong_answer_refused_and_server_continues(
    folder: Path, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    chatty = over_stdio("chatty", CHATTY)
    async with proxied(folder, user, chatty, mode="legacy", max_payload_bytes=1 << 20) as behind:
        short = await behind.call_tool("flood", {"kind": "long", "count": 900_000})
        long = {"kind": "long", "count": 3_000_000}
        refused = await behind.call_tool("flood", long, raise_on_error=False)
        after = await behind.call_tool("add", {"a": 1, "b": 2})

    assert not short.is_error
    assert refused.is_error
    assert "the answer has more than 1,048,576 bytes" in refused.content[0].text
    assert "raise max_payload_bytes" in refused.content[0].text
    assert after.content[0].text == "3"
    assert not [event for event in caplog.messages if "ended" in event]


async def test_notifications_relayed_in_protocol_form(folder: Path, user: str) -> None:
    notifications: list[Any] = []

    async def message(notification: Any) -> None:
        notifications.append(notification)

    chatty = over_stdio("chatty", CHATTY)
    async with proxied(folder, user, chatty, mode="legacy", client={"message_handler": message}) as behind:
        await behind.call_tool("flood", {"kind": "news", "count": 6})
        assert (await behind.call_tool("add", {"a": 1, "b": 2})).content[0].text == "3"
        assert await becomes(lambda: bool(notifications))

    complete = [one for one in notifications if "elicitation/complete" in str(getattr(one, "method", one))]
    assert [each.params.elicitation_id for each in complete] == ["e1"]
    assert not [each for each in notifications if isinstance(each, Exception)]


@pytest.mark.parametrize("kind", ["updated", "changed"])
async def test_change_flood_collapses_to_one_refresh(folder: Path, user: str, kind: str) -> None:
    client, answers = await flooded(folder, user, kind, MANY)

    assert answers == [str(MANY), "3"]
    assert client.dropped > MANY // 2


async def test_unpaced_messages_all_relayed(folder: Path, user: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: without the rate limit nothing is dropped."""
    monkeypatch.setattr(NotificationPace, "has", lambda _self, _amount, *, now: True)

    client, _answers = await flooded(folder, user, "log", 3000)

    assert (len(client.passed), client.dropped) == (3000, 0)


@given(st.lists(st.floats(0, 2), max_size=300))
def test_pace_relays_its_limit_and_counts_rest(delays: list[float]) -> None:
    pace = NotificationPace(at_once=20, per_s=5)
    now, passed, dropped = 0.0, 0, 0
    for delay in delays:
        now += delay
        passed += pace.passes(now)
        dropped += pace.report(now)
    dropped += pace.report(now, at_last=True)

    assert passed <= 20 + 5 * now
    assert passed + dropped == len(delays)
    assert pace.dropped == 0
