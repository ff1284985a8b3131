"""A curve: what was measured at each size, as a table and as lines to draw."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.figures import table

__all__ = ["Curve", "Panel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One drawing: lines over the same sizes.

    Attributes:
        over: What grows, with its unit.
        shows: What is measured, with its unit.
        lines: Points of each line, by its name.
    """

    over: str
    shows: str
    lines: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, line: str, size: float, value: float) -> None:
        """Put one more point on a line."""
        self.lines.setdefault(line, []).append((size, value))


@dataclass(slots=True, kw_only=True)
class Curve:
    """What one curve found.

    Attributes:
        key: Its name on the command line, and of its picture.
        title: Its heading.
        about: What was done, in a sentence or two.
        headings: Of the table.
        rows: Of the table.
        panels: What is drawn, one beside the other.
        facts: All that was measured, for JSON.
    """

    key: str
    title: str
    about: str
    headings: Sequence[str]
    panels: Sequence[Panel]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)

    def text(self) -> str:
        """Return the sentence and the table as Markdown."""
        return f"{self.about}\n\n{table(self.headings, self.rows)}"
