"""Real tool code works unchanged: libraries, programs, threads, temporary files."""

from collections.abc import AsyncIterator, Iterator

import pytest
from somebody import somebody
from support import TOOLS, call, open_toolset

from runner.toolset.toolset import Toolset

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]


@pytest.fixture(scope="module")
async def toolset(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Toolset]:
    async with open_toolset(TOOLS / "honest.py", tmp_path_factory.mktemp("honest")) as it:
        yield it


@pytest.fixture(scope="module")
def user() -> Iterator[str]:
    """One for this whole file: the zygote of a user takes longer than all else that a test here does."""
    with somebody() as name:
        yield name


async def result(toolset: Toolset, user: str, tool: str) -> object:
    value = (await call(toolset, user, tool)).processed.value
    return value["results"] if "meta_data" not in value else value


async def test_tables_written_and_read_in_every_format(toolset: Toolset, user: str) -> None:
    assert await result(toolset, user, "frames") == {"csv": 1000, "parquet": 1000, "pickle": 1000}
    assert await result(toolset, user, "arrow") == 100


async def test_chart_drawn_and_collected(toolset: Toolset, user: str) -> None:
    value = (await call(toolset, user, "chart")).processed.value

    assert value["results"] == "drawn"
    assert [(a["name"], a["mime"], a["size"] > 1000) for a in value["artifacts"]] == [
        ("chart.png", "image/png", True)
    ]
    assert "meta_data" not in value


async def test_sqlite_keeps_its_write_ahead_log(toolset: Toolset, user: str) -> None:
    assert await result(toolset, user, "database") == {"mode": "wal", "total": 4950}


async def test_archives_and_trees_are_copied(toolset: Toolset, user: str) -> None:
    assert await result(toolset, user, "archive") == ["one.txt"]


async def test_temporary_files_lie_in_home(toolset: Toolset, user: str) -> None:
    found = await result(toolset, user, "scratch")

    assert isinstance(found, dict)
    assert found["file"].startswith(f"/tmp/{user}/")
    assert found["folder"].startswith(f"/tmp/{user}/")
    assert found["size"] == 1


async def test_programs_run_in_same_confinement(toolset: Toolset, user: str) -> None:
    expected = {"git": "git", "commits": "1", "python": "42", "shell": f"/tmp/{user}".upper()}

    assert await result(toolset, user, "programs") == expected


async def test_threads_pools_tasks_and_processes_work(toolset: Toolset, user: str) -> None:
    assert await result(toolset, user, "parallel") == {
        "threads": list(range(8)),
        "pool": [0, 1, 4, 9, 16],
        "tasks": [0, 1, 4],
        "process": "hi",
    }


async def test_user_home_locale_and_time_zones_as_expected(toolset: Toolset, user: str) -> None:
    assert await result(toolset, user, "surroundings") == {
        "user": user,
        "home": f"/tmp/{user}",
        "encoding": "UTF-8",
        "summer": "2026-07-01T12:00:00+02:00",
        "cpus": True,
    }


async def test_calls_each_draw_own_random_numbers(toolset: Toolset, user: str) -> None:
    drawn = [await result(toolset, user, "chance") for _ in range(3)]

    numbers = [number for pair in drawn if isinstance(pair, list) for number in pair]
    assert len(set(numbers)) == 6


async def test_files_written_at_import_read_only_for_calls(toolset: Toolset, user: str) -> None:
    value = (await call(toolset, user, "warm_up_is_read_only")).processed.value

    assert value["results"] is True
