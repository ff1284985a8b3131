"""One name from outside → one safe file name. Pure; nothing here looks at a file system.

The steps, in an order in which none can undo another: characters that nobody sees are removed, what
remains is composed (NFC), the last path segment is kept, look-alikes of separators are replaced, and
what is then no usable name is repaired at its beginning, so that its extension survives.

Source: requirements S1-50 to S1-53 and S1-94 to S1-99; contradiction C20; rules F1 to F4 of the
conformance cases; Unicode Technical Reports 9 (bidirectional marks) and 15 (normalisation).
"""

import itertools
import re
import unicodedata
from collections.abc import Container

__all__ = ["MAX_BYTES", "safe_name", "unique_name"]

MAX_BYTES = 255

_FALLBACK = "file"
# Encoded once, twice or more often: %2f, %252f, %25252f.
_SEPARATOR = re.compile(r"[/\\]|%(?:25)*(?:2f|5c)", re.IGNORECASE)
_DRIVES = re.compile(r"(?:[A-Za-z]:)+")
# What a reader takes for an extension. `.tar` belongs to the one behind it.
_EXTENSION = re.compile(r"(?:\.tar)?\.[^.\s]{1,32}", re.IGNORECASE)
_ENDING = re.compile(r"[.\s]+\Z")
_DEVICE = re.compile(
    r"(?:con|prn|aux|nul|clock\$|conin\$|conout\$|(?:com|lpt)[0-9¹²³])\s*(?:\..*)?", re.IGNORECASE | re.DOTALL
)

# Control characters, halves of surrogate pairs, line and paragraph separators.
_UNSEEN_KINDS = frozenset({"Cc", "Cs", "Zl", "Zp"})
# Characters that reorder, hide or carry text unseen. Joiners are not among them: scripts need them.
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
# Look-alikes of / \ : that no normal form turns into them.
_ALIKE = frozenset(
    "\u2044\u2215\u2571\u27cb\u29f8"  # /
    "\u2216\u2572\u27cd\u29f5\u29f9"  # \
    "\u02f8\u0589\u05c3\u2236\ua789"  # :
)
_SPECIAL = frozenset("/\\:.")


def safe_name(name: str) -> str:
    """Return the safe file name that stands for `name`; a safe name stands for itself."""
    seen = "".join(char for char in name if not _is_unseen(char))
    segment = _last_segment(unicodedata.normalize("NFC", seen))
    safe = _ended("".join("_" if _is_alike(char) else char for char in segment).strip())
    # Shortening can lay a device name bare and repairing can make a name too long.
    while (better := _shorten(_repair(safe))) != safe:
        safe = better
    return safe


def unique_name(name: str, taken: Container[str], *, first: int = 2) -> str:
    """Return `name`, or where it is taken the first free one of `stem_2.ext`, `stem_3.ext` and so on.

    Args:
        name: A safe name.
        taken: The names that are taken.
        first: Where to begin to count, if what comes before is known to be taken.
    """
    if name not in taken:
        return name
    stem, extension = _split(name)
    endings = (f"_{number}{extension}" for number in itertools.count(first))
    candidates = (_cut(stem, MAX_BYTES - len(ending.encode())) + ending for ending in endings)
    return next(candidate for candidate in candidates if candidate not in taken)


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
    # Windows ignores dots and blanks at the end: two names that differ only there are one file.
    return _ENDING.sub("", name)


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
