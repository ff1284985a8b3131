"""A client that is too slow for what a tool says: what it misses is counted, told to it and logged."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from support import TOOLS, Listening, open_toolset, request

from runner.call import execute
from runner.toolset.toolset import Toolset

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

MANY = 3000
# Fewer than are held for a client, however busy the machine is.
FEW = 900


@dataclass
class Slow(Listening):
    """A client that takes its time."""

    takes_s: float = 0.0

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        await asyncio.sleep(self.takes_s)
        await super().notify(method, params)

    @property
    def texts(self) -> list[str]:
        return [params["data"]["msg"] for _method, params in self.notifications]


@pytest.fixture
async def toolset(tmp_path: Path) -> AsyncIterator[Toolset]:
    async with open_toolset(TOOLS / "ends.py", tmp_path, isolation="process") as toolset:
        yield toolset


async def dropped(toolset: Toolset, client: Slow, *levels: str, count: int = MANY) -> bool:
    tool_call = replace(request("ann", "says", {"count": count}, client), levels=frozenset(levels))
    return not (await execute(toolset, tool_call)).processed.is_error


async def test_slow_client_receives_dropped_notification_count_last(
    toolset: Toolset, caplog: pytest.LogCaptureFixture
) -> None:
    client = Slow(takes_s=0.005)

    fine = await dropped(toolset, client, "info", "warning")

    *passed, last = client.texts
    match = re.match(r"(\d+) notifications of the tool were dropped", last)
    logged = [record for record in caplog.records if record.message == "notifications dropped"]
    assert fine
    assert match is not None
    # One that was under way as the call ended may have arrived all the same.
    assert len(passed) + int(match[1]) - MANY in (0, 1)
    assert [(record.levelno, vars(record)["count"]) for record in logged] == [
        (logging.WARNING, int(match[1]))
    ]


# The second takes most of them after the answer, and on a busy machine far longer than it says.
@pytest.mark.parametrize(
    ("takes_s", "count"), [(0.0, FEW), (0.003, 300)], ids=["keeps up", "goes on after the answer"]
)
async def test_fast_client_receives_everything_without_drop_notice(
    takes_s: float, count: int, toolset: Toolset, caplog: pytest.LogCaptureFixture
) -> None:
    client = Slow(takes_s=takes_s)

    fine = await dropped(toolset, client, "info", "warning", count=count)

    assert fine
    assert client.texts == [str(number) for number in range(count)]
    assert "dropped" not in caplog.text


async def test_non_reading_client_does_not_block_call_end(
    toolset: Toolset, caplog: pytest.LogCaptureFixture
) -> None:
    client = Slow(takes_s=3600)

    fine = await dropped(toolset, client, "info", "warning", count=FEW)

    assert fine
    assert client.texts == []
    assert "notifications dropped" in caplog.text


async def test_client_refusing_warnings_gets_none_and_log_has_drop(
    toolset: Toolset, caplog: pytest.LogCaptureFixture
) -> None:
    client = Slow(takes_s=0.005)

    fine = await dropped(toolset, client, "info")

    assert fine
    assert not [text for text in client.texts if "dropped" in text]
    assert "notifications dropped" in caplog.text
