"""The end of a lifespan: when a worker is retired, when the server ends, and within a bound."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from somebody import somebody
from support import call, open_toolset

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

FILE = """
import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastmcp import FastMCP

FOLDER, SECONDS = Path({folder!r}), {seconds}
CALLS = []


@asynccontextmanager
async def lifespan(_server):
    yield {{}}
    await asyncio.sleep(SECONDS)
    (FOLDER / f"ended after {{len(CALLS)}}").touch()


mcp = FastMCP("ends", lifespan=lifespan)


@mcp.tool
async def count() -> int:
    CALLS.append(1)
    return len(CALLS)
"""


@pytest.fixture
def written(tmp_path: Path) -> Callable[[float], tuple[Path, Path]]:
    def write(seconds: float) -> tuple[Path, Path]:
        folder, file = tmp_path / "lent", tmp_path / "tools" / "ends.py"
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)
        file.parent.mkdir()
        file.write_text(FILE.format(folder=str(folder), seconds=seconds))
        return folder, file

    return write


@pytest.mark.parametrize("reuse", ["user", "shared"])
async def test_lifespan_ends_with_its_server(
    written: Callable[[float], tuple[Path, Path]], tmp_path: Path, reuse: str
) -> None:
    folder, file = written(0.01)
    settings: dict[str, Any] = {"worker_reuse": reuse, "allow_write": (folder,)}
    with somebody() as user:
        async with open_toolset(file, tmp_path, user, **settings) as toolset:
            for _ in range(2):
                await call(toolset, user, "count")
            assert not (folder / "ended after 2").exists()

    assert (folder / "ended after 2").exists()


async def test_hanging_lifespan_does_not_delay_server(
    written: Callable[[float], tuple[Path, Path]], tmp_path: Path
) -> None:
    folder, file = written(600)
    with somebody() as user:
        async with open_toolset(file, tmp_path, user, allow_write=(folder,)) as toolset:
            await call(toolset, user, "count")

    assert list(folder.iterdir()) == []
