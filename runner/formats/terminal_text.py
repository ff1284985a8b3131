r"""Untrusted text for a terminal, a log line or a reviewer: hidden characters are escaped.

    "a", ESC, "[2Jb"                     a\x1b[2Jb
    "pay", U+202E, "txt.exe"             pay\u202etxt.exe
    "Adds.", U+E0041, U+E0042            Adds.\U000e0041\U000e0042

Escaped: control characters (C0 except line feed and tab, DEL, C1), bidirectional controls, tag characters,
line separators, lone surrogates, and the rest with the Unicode property Default_Ignorable_Code_Point.

Kept, because they occur in normal text: a carriage return before a line feed; a joiner inside an emoji or
beside a letter of a script that needs it; one variation selector after an emoji, an ideograph or a Mongolian
letter; a zero width space between letters of a script without spaces; a single direction mark in text with
right-to-left letters; the flags of England, Scotland and Wales.
Other runs of tags or selectors can carry hidden text. Pure.

Source: Unicode 16, DerivedCoreProperties (Default_Ignorable_Code_Point) and chapters 9, 12, 13, 16 and 23;
UTS 51, ED-9 and ED-14; ECMA-48.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from runner.formats.json_walks import map_texts

__all__ = [
    "has_hidden",
    "json_text",
    "one_line",
    "table",
    "visible",
    "visible_json",
    "visible_schema",
    "visible_value",
]

_FLAG = "\U0001f3f4"
_TAGGED_FLAG = _FLAG + "(?:" + "|".join(
    "".join(chr(0xE0000 + ord(letter)) for letter in region) + "\U000e007f"
    for region in ("gbeng", "gbsct", "gbwls")
) + ")"  # fmt: skip
# These are contents of a character class.
_HIDDEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_SEEN = rf"[^\x00-\x7f\s{_HIDDEN}]"
# Arabic to Mandaic, Arabic Extended and the presentation forms; the scripts of India and Sri Lanka.
_JOINING = "\u0620-\u085b\u0860-\u088e\u08a0-\u0dff\ufb50-\ufdfb\ufe70-\ufefc"
# Thai and Lao; Myanmar; Khmer; New Tai Lue to Lanna; Myanmar Extended.
_SPACELESS = "\u0e01-\u0edf\u1000-\u109f\u1780-\u17b3\u17b6-\u17f9\u1980-\u1aad\ua9e0-\ua9fe\uaa60-\uaa7f"
_IDEOGRAPHS = "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_KEPT = "|".join(
    (
        "\r(?=\n)",
        # Inside a word or an emoji, possibly after a selector.
        f"(?<={_SEEN}|[\ufe0e\ufe0f])[\u200c\u200d](?={_SEEN})",
        # At the end of a word, or after ASCII at its beginning.
        f"(?<=[{_JOINING}])[\u200c\u200d](?![{_HIDDEN}])",
        f"(?<![{_HIDDEN}])[\u200c\u200d](?=[{_JOINING}])",
        f"(?<=[{_SPACELESS}])\u200b(?=[{_SPACELESS}])",
        "(?<=[\u1820-\u18aa])[\u180b-\u180f]",
        # Some emoji begin with an ASCII character.
        f"(?<=[0-9#*]|{_SEEN})[\ufe0e\ufe0f]",
        f"(?<=[{_IDEOGRAPHS}])[\ufe00-\ufe0d\U000e0100-\U000e01ef]",
    )
)
# Runs, since each replacement takes a microsecond; the lookahead lets the search skip all other text.
_FOUND = re.compile(f"(?=[{_FLAG}{_HIDDEN}])(?:{_TAGGED_FLAG}|(?:(?!{_KEPT})[{_HIDDEN}])+)")
# Arabic letter mark, left-to-right and right-to-left mark: alone they do not reverse text.
_MARKS = "\u061c\u200e\u200f"
_MARK = re.compile(f"[{_MARKS}]")
_MARKED = f"(?<![{_HIDDEN}])[{_MARKS}](?![{_HIDDEN}])"
_FOUND_BESIDE_MARKS = re.compile(
    f"(?=[{_FLAG}{_HIDDEN}])(?:{_TAGGED_FLAG}|(?:(?!{_KEPT}|{_MARKED})[{_HIDDEN}])+)"
)
# Hebrew to Arabic Extended-A, and the presentation forms: letters written from right to left.
_RIGHT_TO_LEFT = re.compile("[\u05d0-\u05f2\u0620-\u08c7\ufb1d-\ufdfb\ufe70-\ufefc]")
# Deeper JSON has been refused earlier.
_MAX_DEPTH = 200
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_EXACT = ("const", "default", "enum")
_NAMED = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")


def visible(text: str) -> str:
    """Return a text of any number of lines with hidden characters escaped."""
    return text if _is_plain(text) else _hidden_in(text).sub(_escaped, text)


def one_line(text: str) -> str:
    """Return a text with hidden characters, tabs and line breaks escaped."""
    return visible(text).replace("\r\n", "\\n").replace("\n", "\\n").replace("\t", "\\t")


def visible_json(text: str) -> str:
    """Return an equal JSON document in which hidden characters are JSON escapes."""
    return text if _is_plain(text) else _hidden_in(text).sub(_escaped_in_json, text)


def json_text(document: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON for standard output; visible characters outside ASCII are kept."""
    return visible_json(json.dumps(document, indent=indent, ensure_ascii=False))


def visible_value(value: Any, depth: int = 0) -> Any:
    """Return a JSON value with hidden characters escaped in every string and key."""
    return map_texts(value, visible, most_levels=_MAX_DEPTH - depth)


def has_hidden(text: str) -> bool:
    """Return whether a name holds hidden characters, tabs or line breaks."""
    return one_line(text) != text


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns; every row has as many fields."""
    shown = [[one_line(field) for field in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in shown]


def visible_schema(schema: Any, depth: int = 0) -> Any:
    """Return a JSON Schema with hidden characters escaped, except control characters in values to be sent.

    Those hide no text, since JSON escapes them, and a client must send such a value unchanged.
    """
    if isinstance(schema, list) and depth < _MAX_DEPTH:
        return [visible_schema(item, depth + 1) for item in schema]
    if not isinstance(schema, dict) or depth >= _MAX_DEPTH:
        return visible_value(schema, depth)
    shown = {}
    for key, item in schema.items():
        if key in _EXACT:
            shown[key] = _sendable(item, depth + 1)
        elif key in _NAMED and isinstance(item, dict):
            # Its keys are names, which may equal keywords.
            shown[key] = {visible(str(name)): visible_schema(one, depth + 2) for name, one in item.items()}
        else:
            shown[visible(str(key))] = visible_schema(item, depth + 1)
    return shown


def _sendable(value: Any, depth: int) -> Any:
    if isinstance(value, str) and not has_hidden(_CONTROL.sub("", value)):
        return value
    if isinstance(value, list) and depth < _MAX_DEPTH:
        return [_sendable(item, depth + 1) for item in value]
    if isinstance(value, dict) and depth < _MAX_DEPTH:
        return {visible(str(key)): _sendable(item, depth + 1) for key, item in value.items()}
    return visible_value(value, depth)


def _hidden_in(text: str) -> "re.Pattern[str]":
    """Return the pattern of hidden characters; direction marks are normal in right-to-left text."""
    return _FOUND_BESIDE_MARKS if _MARK.search(text) and _RIGHT_TO_LEFT.search(text) else _FOUND


def _is_plain(text: str) -> bool:
    # The regular expression takes ten times as long, which matters for a file of 300 MiB in base64.
    return text.isascii() and text.isprintable()


def _escaped(found: "re.Match[str]") -> str:
    return found[0] if found[0][0] == _FLAG else found[0].encode("unicode_escape").decode()


def _escaped_in_json(found: "re.Match[str]") -> str:
    return found[0] if found[0][0] == _FLAG else json.dumps(found[0])[1:-1].replace("\x7f", "\\u007f")
