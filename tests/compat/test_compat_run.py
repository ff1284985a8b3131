"""The survey runs two entries for real, and finds what is equal and what is not."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from compat_entries import Call, Entry, read_entries
from compat_install import ROOT, Laid
from compat_page import toolset_of
from compat_run import Runs, outcome_of

pytestmark = [pytest.mark.needs_npm, pytest.mark.release, pytest.mark.kernel, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
WRITES = """
@mcp.tool
def use() -> str:
    with open("note.txt", "w") as file:
        file.write("kept")
    return "kept"
"""
PROCESS_ID = """
import os


@mcp.tool
def use() -> int:
    return os.getpid()
"""


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    laid = Laid(pythons={"tools": Path(sys.executable)}, versions={"tools": {"polars": "0"}}, checkout=ROOT)
    return Runs(
        laid=laid,
        scratch=tmp_path / "scratch",
        private=tmp_path / "private",
        port=9,
        tiers=("process",),
        sessions_in="process",
    )


def found(entry: Entry, runs: Runs) -> dict[str, Any]:
    return asyncio.run(outcome_of(entry, runs))


def test_a_package_answers_alike_behind_the_runner(runs: Runs) -> None:
    polars = next(entry for entry in read_entries(HERE / "packages.toml") if entry.name == "polars")

    outcome = found(polars, runs)

    assert outcome["plain"] == ""
    assert outcome["version"] == "0"
    assert toolset_of(outcome, "process") == "yes", outcome


def test_command_server_behind_proxy_answers_alike_in_both_eras(runs: Runs) -> None:
    bare = Entry(
        name="bare",
        kind="command",
        command=("{python}", str(ROOT / "tests/proxy/bare.py")),
        calls=(Call("tools/call", {"name": "remember", "arguments": {"value": 7}}),),
    )

    outcome = found(bare, runs)

    assert outcome["plain"] == ""
    assert outcome["sessions"]
    assert sorted(outcome["toolsets"]["process"]) == ["2025-06-18", "2026-07-28"]
    assert toolset_of(outcome, "process") == "yes", outcome


def test_act_needing_option_passes_only_with_option(runs: Runs) -> None:
    call = (Call("tools/call", {"name": "use"}),)
    entry = Entry(name="writes", kind="package", code=WRITES, calls=call, flags=("RUNNER_HOMES_FOR=all",))

    outcome = found(entry, runs)

    assert toolset_of(outcome, "process") == "with options", outcome
    assert "File operation outside allowed" in outcome["toolsets"]["process"]["2026-07-28"]["bare"]


def test_an_answer_that_differs_is_named_with_both_values(runs: Runs) -> None:
    entry = Entry(name="pid", kind="package", code=PROCESS_ID, calls=(Call("tools/call", {"name": "use"}),))

    outcome = found(entry, runs)

    assert toolset_of(outcome, "process") == "no"
    assert outcome["toolsets"]["process"]["2026-07-28"]["bare"].startswith(
        "use (1).result.content[0].text: plain "
    )


def test_a_server_that_fails_without_the_runner_shows_nothing(runs: Runs) -> None:
    entry = Entry(name="ends", kind="command", command=("{python}", "-c", "raise SystemExit('not today')"))

    outcome = found(entry, runs)

    assert toolset_of(outcome, "process") == "plain fails"
    assert "not today" in outcome["plain"]
