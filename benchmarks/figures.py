"""Targets of a run, percentiles and tables: pure arithmetic and text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["TIMES", "Target", "percentile", "table"]

TIMES = " times"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One thing to reach, and what was measured.

    Attributes:
        what: Its name, which stays the same from run to run.
        limit: What it may be at most, or must be at least.
        measured: What it was; None if it could not be measured.
        unit: As it follows a figure, with its space; `TIMES` marks a ratio of two figures of one run.
        bound: Which side of the limit is good.
        reason: Why it could not be measured.
    """

    what: str
    limit: float
    measured: float | None
    unit: str
    bound: Literal["most", "least"] = "most"
    reason: str = ""

    @property
    def verdict(self) -> str:
        """Return `met`, `MISSED`, or why nothing was measured."""
        if self.measured is None:
            return f"not measured: {self.reason}"
        is_within = self.measured <= self.limit if self.bound == "most" else self.measured >= self.limit
        return "met" if is_within else "MISSED"

    def __str__(self) -> str:
        measured = "-" if self.measured is None else f"{self.measured:.4g}{self.unit}"
        return f"{self.verdict:6} {self.what}: {measured}, at {self.bound} {self.limit:g}{self.unit}"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` of all values stay at or below."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with its columns aligned."""
    widths = [max(len(row[column]) for row in (headings, *rows)) for column in range(len(headings))]

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))} |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([line(headings), rule, *(line(row) for row in rows)])
