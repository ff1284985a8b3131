"""Escapes of hidden characters, and the sequences that keep theirs."""

import json

import pytest

from runner.formats.terminal_text import (
    has_hidden,
    json_text,
    one_line,
    table,
    visible,
    visible_json,
    visible_value,
)

FLAG = "\U0001f3f4" + "".join(chr(0xE0000 + ord(char)) for char in "gbsct") + "\U000e007f"
HIDDEN = [
    *(chr(code) for code in range(0x20) if chr(code) not in "\n\t"),
    *map(chr, range(0x7F, 0xA0)),
    *map(chr, (0xAD, 0x34F, 0x61C, 0x115F, 0x180E, 0x200B, 0x200E, 0x200F, 0x2028, 0x2029)),
    *map(chr, (*range(0x202A, 0x202F), *range(0x2060, 0x2070), 0x3164, 0xFEFF, 0xFFA0)),
    *map(chr, range(0xE0000, 0xE0080)),
    *("\ud800", "\udcff", "\u200c", "\u200d", "\ufe00", "\ufe0f", "\U000e0100"),
]
KEPT = [
    "plain text, 100 %\n\tindented\n",
    "line\r\nline\r\n",
    "Größe, 日本語, עברית, العربية",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",  # family
    "\u2764\ufe0f\u200d\U0001f525",  # heart on fire
    "\U0001f44d\U0001f3fd",  # skin tone
    "1\ufe0f\u20e3",  # keycap
    "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian, with a non-joiner
    "\u0646\u0627\u0645\u0647\u200c\nPDF\u200c\u0647\u0627",  # Persian, at the end and beside ASCII
    "\u0d05\u0d35\u0d28\u0d4d\u200d ",  # Malayalam, at the end of a word
    "\u1797\u17b6\u179f\u17b6\u200b\u1781\u17d2\u1798\u17c2\u179a",  # Khmer, with a word boundary
    "\u0e20\u0e32\u0e29\u0e32\u200b\u0e44\u0e17\u0e22",  # Thai, with a word boundary
    "\u1820\u180b\u1820\u180e\u1820",  # Mongolian, with a variant and a separator
    "\u845b\U000e0100",  # ideograph with a variant
    FLAG,
]


@pytest.mark.parametrize("char", HIDDEN, ids=ascii)
def test_hidden_character_between_letters_is_escaped(char: str) -> None:
    shown = visible(f"a{char}b")

    assert shown == "a" + char.encode("unicode_escape").decode() + "b"
    assert shown.isascii()
    assert shown.isprintable()
    assert visible(shown) == shown


@pytest.mark.parametrize("text", KEPT, ids=ascii)
def test_text_in_ordinary_use_is_unchanged(text: str) -> None:
    assert visible(text) == text
    assert json_text(text) == json.dumps(text, ensure_ascii=False)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("progress\rdone", "progress\\rdone"),
        ("end\r", "end\\r"),
        # A run of selectors or tags carries a byte with each character.
        ("\U0001f600\ufe0f\ufe0f", "\U0001f600\ufe0f\\ufe0f"),
        ("\U0001f600\U000e0101\U000e0102", "\U0001f600\\U000e0101\\U000e0102"),
        ("\U0001f3f4\U000e0061\U000e007f", "\U0001f3f4\\U000e0061\\U000e007f"),
        (FLAG + "\U000e0041", FLAG + "\\U000e0041"),
        ("\u65e5\u200d", "\u65e5\\u200d"),
        ("\u200d\u65e5", "\\u200d\u65e5"),
        ("\u65e5\u200d\u200d\u65e5", "\u65e5\\u200d\\u200d\u65e5"),
        ("\u0645\u200c\u200d\u0645", "\u0645\\u200c\\u200d\u0645"),
        ("\u0e01\u200b\u200b\u0e01", "\u0e01\\u200b\\u200b\u0e01"),
        ("\u65e5\u200b\u65e5", "\u65e5\\u200b\u65e5"),
        ("\u1820\u180b\u180c", "\u1820\u180b\\u180c"),
    ],
    ids=ascii,
)
def test_hidden_character_outside_its_sequence_is_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize("char", HIDDEN, ids=ascii)
def test_json_with_a_hidden_character_is_ascii_and_equal(char: str) -> None:
    value = {f"a{char}": [f"b{char}c"]}

    for text in (json_text(value), visible_json(json.dumps(value)), json_text(value, indent=2)):
        assert json.loads(text) == value
        assert text.isascii()
        assert text.replace("\n", "").isprintable()


def test_one_line_of_several_lines_escapes_the_breaks() -> None:
    assert one_line("a\r\nb\nc\td\u2028e") == "a\\nb\\nc\\td\\u2028e"


def test_name_with_a_hidden_character_is_recognised() -> None:
    names = ["plain", "größe", "a\u202e", "a\n", "a\U000e0041"]

    assert [has_hidden(name) for name in names] == [False, False, True, True, True]


def test_value_is_escaped_in_keys_and_at_any_depth() -> None:
    value = {"a\u202e": [{"b": "c\x1b", "n": 1, "t": True, "z": None}]}

    assert visible_value(value) == {"a\\u202e": [{"b": "c\\x1b", "n": 1, "t": True, "z": None}]}


def test_table_cell_with_a_line_break_stays_in_its_row() -> None:
    assert table([["a\nb", "1"], ["c", "2"]]) == ["a\\nb  1", "c     2"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\u05e9\u05dc\u05d5\u05dd C++\u200f!", "\u05e9\u05dc\u05d5\u05dd C++\u200f!"),
        ("\u0627\u0644\u200e(a)\u061c.", "\u0627\u0644\u200e(a)\u061c."),
        ("\u05e9\u200f\u200e\u200f\u05dc", "\u05e9\\u200f\\u200e\\u200f\u05dc"),
        ("\u05e9\u202e\u05dc\u2067", "\u05e9\\u202e\u05dc\\u2067"),
        ("pay\u200ftxt", "pay\\u200ftxt"),
    ],
)
def test_direction_mark_in_right_to_left_text_is_unchanged(text: str, shown: str) -> None:
    assert visible(text) == shown
