"""State folder or homes on a full disk: new users get the reason, and nobody else is stopped."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from disks import fill, small_disk
from support import open_toolset, request, strongest_tier

from runner.call import Completed, execute
from runner.errors import Code
from runner.toolset.toolset import Toolset

pytestmark = [pytest.mark.needs_root, pytest.mark.anyio, pytest.mark.kernel]

TOOL = """
import os
from fastmcp import FastMCP
mcp = FastMCP("writes")
@mcp.tool
def write(username: str, size: int) -> int:
    with open(os.path.join(os.environ["HOME"], "file"), "wb") as file:
        return file.write(bytes(size))
"""


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    path = tmp_path / "writes.py"
    path.write_text(TOOL)
    return path


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    with small_disk(tmp_path / "disk") as folder:
        folder.chmod(0o755)
        yield folder


async def write(toolset: Toolset, user: str, size: int = 1) -> Completed:
    return await execute(toolset, request(user, "write", {"username": user, "size": size}))


def error_of(done: Completed) -> dict[str, Any]:
    return dict(done.wire)


async def test_full_state_folder_fails_new_users_only(
    disk: Path, tmp_path: Path, tool: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert strongest_tier() != "process", "ids for users are given by root only; run these tests as root"
    async with open_toolset(tool, disk) as toolset:
        assert not error_of(await write(toolset, "ann"))["isError"]
        taken = fill(disk)

        new = await write(toolset, "bob")
        known = await write(toolset, "ann")
        taken.unlink()
        later = await write(toolset, "bob")

    assert new.processed.failure is not None
    assert new.processed.failure.code is Code.E_STORE
    assert "state_dir" in str(new.processed.failure)
    assert str(tmp_path) not in str(new.processed.failure)
    assert not error_of(known)["isError"]
    assert not error_of(later)["isError"]
    (logged,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert vars(logged)["user"] == "bob"
    assert logged.exc_info is None


async def test_full_home_fails_only_calls_that_write(disk: Path, tool: Path) -> None:
    homes = disk / "homes"
    homes.mkdir()
    homes.chmod(0o1777)
    async with open_toolset(tool, disk.parent / "elsewhere", homes=homes) as toolset:
        assert not error_of(await write(toolset, "ann"))["isError"]
        fill(disk)

        full = await write(toolset, "ann", 1_000_000)
        nothing = [await write(toolset, user, 0) for user in ("ann", "bob", "eve")]

    assert full.processed.failure is not None
    assert "no room left on the disk" in str(full.processed.failure)
    assert [str(done.processed.failure) for done in nothing] == ["None"] * 3
