"""The table of what works is what works."""

from collections.abc import Iterator

import pytest
from compat_page import OTHERS
from compat_survey import DOCUMENT, ROWS, TIERS, for_anybody, outcomes_in_every_tier, survey

pytestmark = [
    pytest.mark.needs_root,
    pytest.mark.needs_npm,
    pytest.mark.release,
    pytest.mark.kernel,
    pytest.mark.timeout(400),
]

# Said by the tool's author or the kernel, and worth more than a number.
SENTENCES = {
    "spawned": 'use multiprocessing.get_context("fork")',
    "manager": "share a Queue, Value, Array or SharedMemory instead",
    "own_programs": "Permission denied",
}


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[str, dict[str, str]]]:
    with for_anybody() as (python, tool_file):
        yield outcomes_in_every_tier(python, tool_file)


def test_committed_table_matches_the_survey(outcomes: dict[str, dict[str, str]]) -> None:
    assert DOCUMENT.read_text().startswith(survey(outcomes)), outcomes


def test_every_tool_is_a_line_and_every_line_a_tool(outcomes: dict[str, dict[str, str]]) -> None:
    for tier in TIERS:
        assert {row.tool for row in ROWS} == set(outcomes[tier])


def test_every_negative_line_has_its_reason() -> None:
    table = DOCUMENT.read_text().partition(OTHERS)[0]
    lines = [line for line in table.splitlines() if "| no |" in line]

    assert lines
    assert [line for line in lines if line.rstrip("| ").endswith(("yes", "no"))] == []


def test_unsupported_act_names_the_remedy(outcomes: dict[str, dict[str, str]]) -> None:
    for tier in TIERS:
        for tool, sentence in SENTENCES.items():
            assert sentence in outcomes[tier][tool] or outcomes[tier][tool] == "works"
