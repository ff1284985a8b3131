"""A call that changes what its server offers does so in one worker: there its user's requests are asked."""

from pathlib import Path
from typing import Any

import pytest
from somebody import somebody
from support import TOOLS, listed, open_toolset, request

from runner.call import execute
from runner.toolset.toolset import Toolset

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

FILE = TOOLS / "changing.py"


async def called(toolset: Toolset, user: str, tool: str, **arguments: Any) -> Any:
    completed = await execute(toolset, request(user, tool, arguments))
    return completed.processed.value["results"]


async def test_tool_added_by_homed_call_visible_to_its_user_only(
    tmp_path: Path,
) -> None:
    with somebody() as one, somebody() as other:
        async with open_toolset(FILE, tmp_path, one) as toolset:
            before = await listed(toolset, one)
            grown = await called(toolset, one, "grow_at_home")
            after, others = await listed(toolset, one), await listed(toolset, other)
            made = await called(toolset, one, "at_home")
            refused = await called(toolset, other, "at_home")
            plain = await called(toolset, one, "counted")

    assert grown == "grown"
    assert after == before | {"at_home"}
    assert others == before
    assert made == "4"
    assert "no tool 'at_home'" in refused["error"].lower() or "at_home" in refused["error"]
    assert isinstance(plain, list)


async def test_fresh_worker_per_call_keeps_no_changes(tmp_path: Path) -> None:
    with somebody() as user:
        async with open_toolset(FILE, tmp_path, user, worker_reuse="call") as toolset:
            before = await listed(toolset, user)
            await called(toolset, user, "grow_at_home")
            after = await listed(toolset, user)

    assert after == before
