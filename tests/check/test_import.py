"""What only running a tool file shows, seen in the sandbox: threads, processor time, output at import."""

from pathlib import Path

import pytest
from specimens import FAULTLESS, FAULTY, expected
from support import settings_in

from runner.check.import_rules import seen_at_import
from runner.check.import_watch import SourceLine, WatchedImport
from runner.check.source import SourceFile
from runner.toolset.toolset import Toolset
from runner.toolset.user_pool import HomeAccess
from runner.users.identity import User

pytestmark = [pytest.mark.kernel, pytest.mark.release]

RULES_OF_THE_IMPORT = {"slow-import", "threads-at-import", "print-to-stdout"}


def seen_later(file: Path) -> set[tuple[int, str]]:
    """Return what only the import of a file can show: not a sleep, not a print in a tool."""
    shown_by_running = {
        "print_by_library",
        "print_at_import",
        "slow_computes",
        "threads_in_pool",
        "threads_started",
    }
    return expected(file) if file.stem in shown_by_running else set()


@pytest.mark.timeout(600)
@pytest.mark.anyio
async def test_threads_time_and_output_at_import_are_seen_at_their_lines_and_nowhere_else(
    folder: Path,
) -> None:
    loadable = [
        file
        for file in (*FAULTY, *FAULTLESS)
        if "write-at-import" not in {rule for _, rule in expected(file)}
    ]
    settings = settings_in(folder, idle_workers=1)

    async with (
        Toolset.open(settings, list(map(str, loadable)), program="runner.check.program") as toolset,
        toolset.user_pool(User("nobody"), toolset.key(User("nobody"), access=HomeAccess.NONE)) as user_pool,
    ):
        loaded, forks = user_pool.pool.loaded, user_pool.pool.forks
    watched = WatchedImport.from_hello(loaded.hello)

    found = {
        (file.stem, finding.line, finding.rule)
        for file in loadable
        for finding in seen_at_import(
            watched, SourceFile(file.read_text(), identity="username"), file.name, threads=loaded.threads
        )
        # One zygote has imported them all, and its threads are told of every file.
        if finding.rule != "threads-at-import" or starts_threads(watched, file)
    }
    assert not forks
    assert found == {(file.stem, line, rule) for file in loadable for line, rule in seen_later(file)}


def starts_threads(watched: WatchedImport, file: Path) -> bool:
    return any(place.file == file.name for place in watched.threads)


@pytest.mark.parametrize(
    "hello", [{}, {"watched": None}, {"watched": {"seconds": [["f"]], "threads": [], "printed": []}}]
)
def test_a_hostile_report_is_refused(hello: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="malformed"):
        WatchedImport.from_hello(hello)


def test_a_thread_of_a_library_is_told_at_the_import_that_took_longest() -> None:
    text = "import os\nimport big\nfrom fastmcp import FastMCP\n"
    watched = WatchedImport(
        seconds={SourceLine("t.py", 2): 0.4, SourceLine("t.py", 3): 0.1}, threads=(), printed=()
    )

    [finding] = seen_at_import(watched, SourceFile(text, identity="username"), "t.py", threads=2)

    assert (finding.line, finding.rule) == (2, "threads-at-import")


def test_slow_libraries_are_told_above_a_higher_limit_than_slow_code() -> None:
    source = SourceFile("import big\nx = compute()\n", identity="username")

    def told(library_s: float, code_s: float) -> list[int]:
        seconds = {SourceLine("t.py", 1): library_s, SourceLine("t.py", 2): code_s}
        watched = WatchedImport(seconds=seconds, threads=(), printed=())
        return [finding.line for finding in seen_at_import(watched, source, "t.py", threads=1)]

    assert (told(2.5, 0.5), told(3.5, 0.5), told(0, 1.1)) == ([], [1], [2])
