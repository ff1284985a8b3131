"""The character encoding of a text, by its first bytes: UTF-8, UTF-16, UTF-32, Shift-JIS, Windows-1252.

Spreadsheet programs write CSV files in the encoding of their country. The criteria are a byte-order mark, the
positions of NUL, and the legacy encoding that decodes strictly to usual characters.

Source: RFC 2781; Unicode 16, section 23.8; WHATWG Encoding Standard (labels of shift_jis and windows-1252).
"""

import codecs

from runner.formats.magic import identify

__all__ = ["encoding_of"]

_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_TEXT_CONTROLS = frozenset(b"\t\n\r\f\x1a\x1b")
_JAPANESE = (("\u3000", "\u30ff"), ("\u4e00", "\u9fff"), ("\uff01", "\uff60"))


def encoding_of(head: bytes, *, is_whole: bool = False) -> str | None:
    """Return the encoding of a text, by its name in Python; None if it is binary.

    Args:
        head: Its beginning.
        is_whole: Whether that is the whole text. Otherwise its last character may be cut.
    """
    if _decodes(head, "utf-8", is_whole=is_whole):
        return None if b"\0" in head else "utf-8"
    if identify(head) is not None:
        return None
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name if _decodes(head, name, is_whole=is_whole) else None
    if b"\0" in head:
        return _without_mark(head)
    if any(byte < 0x20 and byte not in _TEXT_CONTROLS for byte in head):
        return None
    if _decodes(head, "cp932", is_whole=is_whole) and _is_japanese(head):
        return "cp932"
    return "cp1252" if _decodes(head, "cp1252", is_whole=is_whole) else None


def _without_mark(head: bytes) -> str | None:
    """Return the UTF-16 variant of mostly ASCII text, in which every second byte is NUL; else None."""
    nuls = (head[0::2].count(0), head[1::2].count(0))
    half = len(head) // 2
    name = "utf-16-be" if nuls[0] > nuls[1] else "utf-16-le"
    return name if max(nuls) > half // 2 and min(nuls) == 0 and _decodes(head, name, is_whole=False) else None


def _is_japanese(head: bytes) -> bool:
    beyond = [char for char in head.decode("cp932", "replace") if char > "\x7f"]
    known = sum(any(first <= char <= last for first, last in _JAPANESE) for char in beyond)
    return 10 * known >= 7 * len(beyond)


def _decodes(head: bytes, encoding: str, *, is_whole: bool) -> bool:
    try:
        codecs.getincrementaldecoder(encoding)().decode(head, is_whole)
    except UnicodeDecodeError:
        return False
    return True
