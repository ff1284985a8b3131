"""A worker of one call that waits has walked the way of a call; one that stays with its user has not."""

import asyncio
import contextlib
from pathlib import Path
from typing import Literal

import psutil
import pytest
from process_tree import children, zygotes
from support import becomes, call, open_toolset

pytestmark = pytest.mark.kernel

TOOLS = Path(__file__).parents[1] / "tools" / "lasting.py"
MIB = 1 << 20


async def _spare_mib(folder: Path, reuse: Literal["user", "call"]) -> float:
    """Return the memory that a worker has alone which waits for its first call: of several, the least."""
    async with open_toolset(TOOLS, folder, "ann", worker_reuse=reuse, idle_workers=2) as toolset:
        completed = await call(toolset, "ann", "lasts", seconds=0.01)
        assert not completed.processed.is_error, completed.processed.value
        # The one that has served the call and one more, of each zygote.
        assert await becomes(lambda: all(len(children(zygote)) > 1 for zygote in zygotes()))
        found: list[float] = []
        for pid in [child for zygote in zygotes() for child in children(zygote)]:
            # The one that has served its only call may end meanwhile.
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid).memory_full_info().uss / MIB)
        return min(found)


async def _both(folder: Path) -> tuple[float, float]:
    return await _spare_mib(folder / "call", "call"), await _spare_mib(folder / "user", "user")


def test_single_call_worker_alone_copies_pages_before_call(
    tmp_path: Path,
) -> None:
    for name in ("call", "user"):
        (tmp_path / name).mkdir()

    of_one_call, stays = asyncio.run(_both(tmp_path))

    assert of_one_call > stays + 1, (of_one_call, stays)
