"""Rules on the report of a watched import."""

import pytest

from runner.check.dry_run import MALFORMED
from runner.check.source import SourceFile
from runner.check.wire_rules import seen_at_import

SOURCE = SourceFile("import big\nx = compute()\n")


def seen(seconds: list[list[float]], threads: list[int], left: int = 1) -> list[tuple[int, str]]:
    hello = {"watched": {"seconds": seconds, "threads": threads}}
    return [(finding.line, finding.rule) for finding in seen_at_import(hello, SOURCE, threads=left)]


@pytest.mark.parametrize(
    ("seconds", "found"),
    [
        ([[1, 2.5], [2, 0.5]], []),
        ([[1, 3.5], [2, 0.5]], [(1, "slow-import")]),
        ([[1, 0.0], [2, 1.1]], [(2, "slow-import")]),
    ],
)
def test_libraries_may_take_longer_than_own_code(
    seconds: list[list[float]], found: list[tuple[int, str]]
) -> None:
    assert seen(seconds, []) == found


def test_thread_without_trace_found_at_slowest_import() -> None:
    assert seen([[1, 0.4]], [], left=2) == [(1, "threads-at-import")]
    assert seen([[1, 0.4]], [2], left=2) == [(2, "threads-at-import")]
    assert seen([[1, 0.4]], [2], left=1) == []


@pytest.mark.parametrize("hello", [{}, {"watched": None}, {"watched": {"seconds": [["f"]], "threads": []}}])
def test_hostile_report_refused(hello: dict[str, object]) -> None:
    with pytest.raises(MALFORMED):
        list(seen_at_import(hello, SOURCE, threads=1))
