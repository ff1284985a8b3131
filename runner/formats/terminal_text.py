"""Text for a terminal: nothing in it that one would obey, and rows as a table."""

from collections.abc import Iterable, Sequence

__all__ = ["printable", "table"]


def printable(text: str, stand_in: str = "?") -> str:
    """Return a text on one line, with `stand_in` for each character that cannot be seen."""
    return "".join(char if char.isprintable() else stand_in for char in text)


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns; every row has as many fields."""
    shown = [[printable(field) for field in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in shown]
