"""Output of tools: bounded lines of the log, and messages to the client where its user develops the tool."""

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from runner.steps.listener import CallListener
from runner.steps.tool_output import report_output
from runner.toolset.session_state import SessionState
from sandbox.deadlines import Deadlines
from sandbox.outcome import Ending, Outcome

pytestmark = pytest.mark.anyio

RAISED = {
    "type": "RuntimeError",
    "message": "no report",
    "notes": "row 3",
    "frames": [{"file": "t.py", "line": 7, "function": "load", "text": "raise"}],
    "chain": [{"relation": "cause", "type": "KeyError", "message": "'price'"}],
}
TRACE = [
    "RuntimeError: no report",
    "  note: row 3",
    "  t.py, line 7, in load: raise",
    "cause: KeyError: 'price'",
]


class Receiver:
    """A client that keeps its notifications."""

    def __init__(self) -> None:
        self.received: list[tuple[str, str]] = []

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        assert method == "notifications/message"
        self.received.append((params["level"], params["data"]["msg"]))

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        raise AssertionError(method)


async def reported(
    caplog: pytest.LogCaptureFixture, to: str, output: str, raised: object = None, *levels: str
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    client = Receiver()
    listener = CallListener(
        client=client,
        params={"name": "t"},
        levels=frozenset(levels),
        deadlines=Deadlines(),
        user="alice",
        state=SessionState(),
    )
    outcome = Outcome(ending=Ending.ANSWERED, answer={"raised": raised}, output=output)
    with caplog.at_level(logging.INFO):
        await report_output(outcome, listener, tool="t", to=to)
    logged = [(record.message, vars(record).get("line", "")) for record in caplog.records]
    return logged, client.received


async def test_output_is_logged_by_line_and_stays_from_clients(caplog: pytest.LogCaptureFixture) -> None:
    logged, received = await reported(caplog, "log", "one\ntwo\n", RAISED, "info", "error")

    assert logged == [
        ("tool printed", "one"),
        ("tool printed", "two"),
        *(("tool raised", line) for line in TRACE),
    ]
    assert received == []


async def test_output_dropped_is_neither_logged_nor_sent(caplog: pytest.LogCaptureFixture) -> None:
    assert await reported(caplog, "drop", "one", RAISED, "info", "error") == ([], [])


async def test_output_for_a_client_is_sent_at_its_levels(caplog: pytest.LogCaptureFixture) -> None:
    logged, received = await reported(caplog, "client", "one\n", RAISED, "info", "error")
    _logged, warned = await reported(caplog, "client", "one\n", RAISED, "warning")

    assert len(logged) == 1 + len(TRACE)
    assert received == [("info", "one\n"), ("error", "\n".join(TRACE))]
    assert warned == []


async def test_output_above_the_bound_keeps_its_end(caplog: pytest.LogCaptureFixture) -> None:
    logged, _ = await reported(caplog, "log", "".join(f"{n}\n" for n in range(5000)))

    assert logged[0] == ("tool output shortened", "")
    assert logged[-1] == ("tool printed", "4999")
    assert len(logged) == 201


@pytest.mark.parametrize(
    "raised",
    [{}, {"type": "E", "chain": 3, "frames": "x"}, {"type": 1, "chain": [None, {"frames": [7]}]}, []],
)
async def test_worker_message_read_without_trust(raised: object, caplog: pytest.LogCaptureFixture) -> None:
    logged, _ = await reported(caplog, "log", "", raised)

    assert {event for event, _line in logged} <= {"tool raised"}
