"""Reports of progress that come in one piece with the answer: all of them are passed on, ahead of it.

How busy the machine is makes no difference here: nothing comes closer to an answer than this.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hasty import HANDSHAKE, MODERN, REPORTS, listening
from proxying import messages_of_call, over_http, over_stdio, proxied, proxy_command

from runner.proxy.targets import Target

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

EXPECTED = [(n, REPORTS, f"report {n}") for n in range(1, REPORTS + 1)]


@pytest.fixture(params=["stdio", f"http {HANDSHAKE}", f"http {MODERN}"])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    transport, _, era = request.param.partition(" ")
    with ExitStack() as stack:
        if transport == "stdio":
            yield over_stdio("hasty", Path(__file__).parent / "hasty.py")
        else:
            yield over_http(stack.enter_context(listening(era)), "hasty")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_reports_delivered_in_order_before_immediate_answer(
    target: Target, mode: str, folder: Path, user: str
) -> None:
    async with proxied(folder, user, target, mode=mode) as client:
        for _ in range(3):
            reports: list[Any] = []

            async def progress(*report: Any, reports: list[Any] = reports) -> None:
                reports.append(report)

            await client.call_tool("hurry", progress_handler=progress)

            assert reports == EXPECTED


@pytest.mark.parametrize("era", [HANDSHAKE, MODERN])
def test_reports_are_on_wire_before_answer(era: str, folder: Path) -> None:
    with listening(era) as url, proxy_command(folder, url) as front:
        for _ in range(3):
            *reports, answer = messages_of_call(front, "hurry", {})

            params = [report["params"] for report in reports]
            assert [(each["progress"], each["total"], each["message"]) for each in params] == EXPECTED
            assert {each["progressToken"] for each in params} == {"steps"}
            assert answer["result"]["content"] == [{"type": "text", "text": "done"}]
