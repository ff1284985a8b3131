"""One untrusted name → one safe file name. Pure; nothing here accesses a file system.

The steps, in an order in which none can undo another: invisible characters are removed, the rest is composed
(NFC), the last path segment is kept, look-alikes of separators are replaced. A name that is then unusable is
repaired at its beginning, so that its extension survives.

A name may have any length and any characters. So it is cut first, and runs of combining marks are cut before
it is composed: sorting a run takes quadratic time.

Source: requirements S1-50 to S1-53 and S1-94 to S1-99; contradiction C20; rules F1 to F4 of the
conformance cases; Unicode Technical Reports 9 (bidirectional marks) and 15 (normalisation; runs of marks:
section 13, "Stream-Safe Text Format").
"""

import itertools
import re
import unicodedata
from collections.abc import Container, Iterable, Iterator
from urllib.parse import unquote

from runner.formats.bounded_text import cut_middle

__all__ = ["MAX_BYTES", "name_in_uri", "safe_name", "unique_name"]

MAX_BYTES = 255

_FALLBACK = "file"
# Four times the longest safe name. A longer name keeps its beginning and its end.
_MOST_CHARS = 1024
# No language has more in a row.
_MOST_MARKS = 30
# Encoded once, twice or more often: %2f, %252f, %25252f.
_SEPARATOR = re.compile(r"[/\\]|%(?:25)*(?:2f|5c)", re.IGNORECASE)
_DRIVES = re.compile(r"(?:[A-Za-z]:)+")
# Text that a reader recognises as an extension. `.tar` belongs to the extension after it.
_EXTENSION = re.compile(r"(?:\.tar)?\.[^.\s]{1,32}", re.IGNORECASE)
_DEVICE = re.compile(
    r"(?:con|prn|aux|nul|clock\$|conin\$|conout\$|(?:com|lpt)[0-9¹²³])\s*(?:\..*)?", re.IGNORECASE | re.DOTALL
)

# Control characters, lone surrogates, line and paragraph separators.
_UNSEEN_KINDS = frozenset({"Cc", "Cs", "Zl", "Zp"})
# Characters that reorder, hide or carry text invisibly. Joiners are not included: some scripts need them.
_UNSEEN = frozenset(
    chr(code)
    for code in (
        *(0x00AD, 0x061C, 0x180E, 0x200B, 0x200E, 0x200F, 0xFEFF),
        *range(0x202A, 0x202F),
        *range(0x2060, 0x2070),
        *range(0xFFF9, 0xFFFC),
        *range(0xE0000, 0xE0080),
    )
)
# Look-alikes of / \ : that normalisation does not convert to them.
_ALIKE = frozenset(
    "\u2044\u2215\u2571\u27cb\u29f8"  # /
    "\u2216\u2572\u27cd\u29f5\u29f9"  # \
    "\u02f8\u0589\u05c3\u2236\ua789"  # :
)
_SPECIAL = frozenset("/\\:.")


def safe_name(name: str) -> str:
    """Return the safe file name that stands for `name`; a safe name stands for itself."""
    seen = _without_long_runs(char for char in _bounded(name) if not _is_unseen(char))
    segment = _last_segment(unicodedata.normalize("NFC", "".join(seen)))
    safe = _ended("".join("_" if _is_alike(char) else char for char in segment).strip())
    # Shortening can expose a device name, and repairing can make a name too long.
    while (better := _shorten(_repair(safe))) != safe:
        safe = better
    return safe


def unique_name(name: str, taken: Container[str], *, first: int = 2) -> str:
    """Return `name`, or if it is taken the first free one of `stem_2.ext`, `stem_3.ext` and so on.

    Args:
        name: A safe name.
        taken: The names that are taken.
        first: First number to try, if the lower ones are known to be taken.
    """
    if name not in taken:
        return name
    stem, extension = _split(name)
    endings = (f"_{number}{extension}" for number in itertools.count(first))
    candidates = (_cut(stem, MAX_BYTES - len(ending.encode())) + ending for ending in endings)
    return next(candidate for candidate in candidates if candidate not in taken)


def name_in_uri(uri: object) -> str:
    """Return the last segment of a URI, without percent-encoding; empty if there is none."""
    path = uri.partition("#")[0].partition("?")[0] if isinstance(uri, str) else ""
    return unquote(path.rstrip("/").rpartition("/")[2])


def _bounded(name: str) -> str:
    """Return a name unchanged, or if it is too long the beginning and the end of its last segment."""
    if len(name) <= _MOST_CHARS:
        return name
    end = name.rstrip("/\\ ")
    return cut_middle(end[max(end.rfind("/"), end.rfind("\\")) + 1 :], _MOST_CHARS, mark="")


def _without_long_runs(chars: Iterable[str]) -> Iterator[str]:
    """Yield the characters without combining marks in excess of the longest run."""
    run = 0
    for char in chars:
        run = run + 1 if unicodedata.combining(char) else 0
        if run <= _MOST_MARKS:
            yield char


def _is_unseen(char: str) -> bool:
    return char in _UNSEEN or unicodedata.category(char) in _UNSEEN_KINDS


def _is_alike(char: str) -> bool:
    if char.isascii():
        return char == ":"
    return char in _ALIKE or not _SPECIAL.isdisjoint(unicodedata.normalize("NFKC", char))


def _last_segment(path: str) -> str:
    segments = [segment.strip() for segment in _SEPARATOR.split(path)]
    last = next((segment for segment in reversed(segments) if segment), "")
    drives = _DRIVES.match(last)
    return last[drives.end() :] if drives else last


def _ended(name: str) -> str:
    # Windows ignores dots and blanks at the end: names that differ only there denote one file.
    end = len(name)
    while end and (name[end - 1] == "." or name[end - 1].isspace()):
        end -= 1
    return name[:end]


def _repair(name: str) -> str:
    if not name.strip(". "):
        return _FALLBACK
    return f"_{name}" if name.startswith((".", "-")) or _DEVICE.fullmatch(name) else name


def _shorten(name: str) -> str:
    if len(name.encode()) <= MAX_BYTES:
        return name
    stem, extension = _split(name)
    return _ended(_cut(stem, MAX_BYTES - len(extension.encode())) + extension)


def _split(name: str) -> tuple[str, str]:
    """Split off the extension; the stem is never empty."""
    for dot in (name.lower().rfind(".tar."), name.rfind(".")):
        if dot > 0 and _EXTENSION.fullmatch(name, dot):
            return name[:dot], name[dot:]
    return name, ""


def _cut(text: str, max_bytes: int) -> str:
    return text.encode()[: max(max_bytes, 0)].decode(errors="ignore")
