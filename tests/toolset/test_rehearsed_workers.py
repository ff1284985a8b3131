"""A worker of one call that waits has walked the way of a call; one that stays with its user has not."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import psutil
import pytest
from process_tree import children, zygotes
from support import becomes, call, open_toolset

pytestmark = pytest.mark.kernel

TOOLS = Path(__file__).parents[1] / "tools" / "lasting.py"
MIB = 1 << 20


def _least_mib() -> float:
    """Return the memory that a waiting worker has alone: of several, the least."""
    found: list[float] = []
    for pid in [child for zygote in zygotes() for child in children(zygote)]:
        # The one that has served its only call may end meanwhile, and has no memory then.
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid).memory_full_info().uss / MIB)
    return min(filter(None, found), default=0.0)


@contextlib.asynccontextmanager
async def _waiting(folder: Path, reuse: Literal["user", "call"]) -> AsyncIterator[None]:
    folder.mkdir()
    async with open_toolset(TOOLS, folder, "ann", worker_reuse=reuse) as toolset:
        completed = await call(toolset, "ann", "lasts", seconds=0.01)
        assert not completed.processed.is_error, completed.processed.value
        assert await becomes(lambda: all(children(zygote) for zygote in zygotes()))
        yield


@pytest.mark.anyio
async def test_single_call_worker_alone_copies_pages_before_call(tmp_path: Path) -> None:
    async with _waiting(tmp_path / "user", "user"):
        stays = _least_mib()
    async with _waiting(tmp_path / "call", "call"):
        assert await becomes(lambda: _least_mib() > stays + 1), (stays, _least_mib())
