"""Line numbers of keys in TOML, for errors: `tomllib` keeps none. Pure.

Source: TOML 1.0, "Keys", "Table" and "Array of Tables".
"""

import re

__all__ = ["line_of"]

_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_KEYS = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_HEADER = re.compile(rf"[ \t]*(\[\[?)[ \t]*({_KEYS})[ \t]*\]")
_ENTRY = re.compile(rf"[ \t]*({_KEYS})[ \t]*=")


def line_of(text: str, leaf: tuple[str, ...]) -> int | None:
    """Return the number of the line that gives a key or opens a table, or holds it inline.

    Args:
        text: Valid TOML.
        leaf: The parts of the key; of an array of tables also the index, as text.
    """
    table: tuple[str, ...] = ()
    arrays: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if header := _HEADER.match(line):
            table = ()
            parts = _parts(header[2])
            for at, part in enumerate(parts, start=1):
                table = (*table, part)
                if header[1] == "[[" and at == len(parts):
                    arrays[table] = arrays.get(table, -1) + 1
                if table in arrays:
                    table = (*table, str(arrays[table]))
            found = table
        elif entry := _ENTRY.match(line):
            found = (*table, *_parts(entry[1]))
            if leaf[: len(found)] == found:
                return number
        else:
            continue
        if found[: len(leaf)] == leaf:
            return number
    return None


def _parts(keys: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in re.findall(_PART, keys))
