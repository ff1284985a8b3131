"""Of how many values a JSON text is made, counted before it is read.

Reading costs time and memory by the value and not by the byte: a megabyte may be one string, or a million
numbers. Counting takes about a nanosecond a byte, whatever the text is, well-formed or not.

Source: RFC 8259, sections 2 and 7.
"""

import re

__all__ = ["values_above"]

# Never fails, so that a quote that is never closed costs no second look at what follows it.
_STRING = re.compile(rb'"[^"]*+"?')


def values_above(text: bytes, most: int) -> int:
    """Return of how many values a text is made if they are more than `most`, else 0; never too few.

    What stands inside strings does not count. A list or object counts for itself and for what it holds.

    Args:
        text: JSON, or what may be none.
        most: How many are allowed.
    """
    # Each value but the first has a comma or a bracket before it.
    if len(text) <= most or (count := _marks(text)) <= most:
        return 0
    if 0 in text:
        # No UTF-8, in which quotes and escapes are other bytes; `json` reads it nevertheless.
        return count
    bare = text.replace(rb"\\", b"").replace(rb"\"", b"")
    # A value may have a key, and strings are nothing else. Where there are no more, taking them out is quick.
    strings = bare.count(b'"') // 2
    count = (strings + 1) // 2 if strings > 2 * most else _marks(_STRING.sub(b"", bare))
    return count if count > most else 0


def _marks(text: bytes) -> int:
    return sum(text.count(mark) for mark in (b",", b"[", b"{"))
