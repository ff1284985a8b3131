"""Truncation of untrusted text to a length that is acceptable in a log line, an error or a comparison.

Every cut leaves a mark, so that a reader knows that text is missing. The cost of a cut does not depend on
the length of the text, so each may run on the event loop.
"""

__all__ = ["cut", "cut_counted", "cut_middle", "whole_characters"]

_MARK = "…"


def cut(text: str, most_chars: int) -> str:
    """Return `text` with at most `most_chars` characters: its beginning, then `…`."""
    return text if len(text) <= most_chars else text[: most_chars - 1] + _MARK


def cut_counted(text: str, most_chars: int) -> str:
    """Return the first `most_chars` characters of `text`, then `… (N characters)` if some are missing."""
    return text if len(text) <= most_chars else f"{text[:most_chars]}{_MARK} ({len(text)} characters)"


def cut_middle(text: str, most_chars: int, *, mark: str = _MARK) -> str:
    """Return the beginning and the end of `text`; of a file name, the extension survives."""
    if len(text) <= most_chars:
        return text
    half = max(most_chars - len(mark), 2) // 2
    return f"{text[:half]}{mark}{text[-half:]}"


def whole_characters(data: bytes, length: int, *, is_first: bool) -> slice:
    """Return the slice of `data` with the UTF-8 characters that begin in its first `length` bytes.

    So each character of a text belongs to exactly one of its ranges: joined in order they are the whole text.

    Args:
        data: A range of a text, and up to three bytes more.
        length: Length of the range.
        is_first: Whether it is the first range of the text, which cannot begin within a character.
    """
    starts = [i for i, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80]
    start = 0 if is_first else starts[0] if starts else min(len(data), 3)
    end = max(start, min(len(data), length))
    most = min(len(data), end + 3)
    while end < most and data[end] & 0xC0 == 0x80:
        end += 1
    return slice(start, end)
