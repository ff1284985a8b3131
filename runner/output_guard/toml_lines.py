"""On which line of a TOML file something stands. The standard library's reader does not say.

Each statement of the file, a header or a key with its value, is read by that reader alone, so nothing of the
syntax is known here but that a statement begins on a line of its own.

Source: TOML 1.0.0, "Table", "Array of Tables".
"""

import tomllib
from collections.abc import Iterator, Sequence

__all__ = ["TomlLines"]

# A value may go over many lines; each more is a further attempt to read it.
_MOST_LINES = 500

Place = tuple[str | int, ...]


class TomlLines:
    """The lines of a text that `tomllib` can read."""

    def __init__(self, text: str) -> None:
        self._lines: dict[Place, int] = {}
        self._counts: dict[Place, int] = {}
        table: Place = ()
        for number, statement in _statements(text):
            if statement.startswith("["):
                table = self._header(statement)
                self._note(table, number)
            else:
                for place in _places(tomllib.loads(statement)):
                    self._note((*table, *place), number)

    def of(self, place: Sequence[str | int]) -> int | None:
        """Return the line of a key, an item or a table, or of what it is in; None: it is not in the text."""
        for end in range(len(place), 0, -1):
            line = self._lines.get(tuple(place[:end]))
            if line is not None:
                return line
        return None

    def _note(self, place: Place, number: int) -> None:
        for end in range(1, len(place) + 1):
            self._lines.setdefault(place[:end], number)

    def _header(self, statement: str) -> Place:
        """Return the table of a header; where it is one of an array, with its number."""
        read = tomllib.loads(statement)
        made: Place = ()
        while read:
            ((key, inner),) = read.items()
            made = (*made, key)
            of_array = isinstance(inner, list)
            if of_array:
                self._counts[made] = self._counts.get(made, -1) + 1
            if made in self._counts:
                made = (*made, self._counts[made])
            read = inner[0] if of_array else inner
        return made


def _statements(text: str) -> Iterator[tuple[int, str]]:
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        first = number
        number += 1
        if not lines[first].strip() or lines[first].lstrip().startswith("#"):
            continue
        statement = lines[first].strip()
        while not _is_whole(statement) and number < min(len(lines), first + _MOST_LINES):
            statement = f"{statement}\n{lines[number]}"
            number += 1
        if _is_whole(statement):
            yield first + 1, statement


def _is_whole(statement: str) -> bool:
    try:
        tomllib.loads(statement)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _places(value: object) -> Iterator[Place]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (key,)
        yield from ((key, *inner) for inner in _places(item))
