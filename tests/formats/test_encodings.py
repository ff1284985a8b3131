"""The encoding of a text is recognised; binary content has none."""

import gzip
import random

import pytest

from runner.formats.encodings import encoding_of

GERMAN = "name;größe\nMüller;1,5\n"
JAPANESE = "名前;サイズ\n山田太郎;1,5\nあ;とても良い\n"


@pytest.mark.parametrize(
    ("text", "written", "read"),
    [
        (GERMAN, "utf-8", "utf-8"),
        (GERMAN, "utf-8-sig", "utf-8"),
        (GERMAN, "cp1252", "cp1252"),
        ("“Ça” 5 €", "cp1252", "cp1252"),
        ("É", "cp1252", "cp1252"),
        (GERMAN, "utf-16", "utf-16-le"),
        (GERMAN, "utf-16-be", "utf-16-be"),
        (GERMAN, "utf-16-le", "utf-16-le"),
        (GERMAN, "utf-32", "utf-32-le"),
        (JAPANESE, "shift_jis", "cp932"),
        (JAPANESE, "utf-16", "utf-16-le"),
        ("a,b\n1,2\n", "ascii", "utf-8"),
        ("", "ascii", "utf-8"),
    ],
)
def test_encoding_of_text_is_recognised(text: str, written: str, read: str) -> None:
    content = text.encode(written)

    found = encoding_of(content, is_whole=True)

    assert found == read
    assert content.decode(read).removeprefix("\ufeff") == text


@pytest.mark.parametrize(
    "content", [gzip.compress(b"x", mtime=0), b"\x89PNG\r\n\x1a\n", b"text\0text", b"a\x01\xe4"]
)
def test_encoding_of_binary_content_is_none(content: bytes) -> None:
    assert encoding_of(content, is_whole=True) is None


def test_encoding_of_random_bytes_is_none() -> None:
    source = random.Random(5)

    assert {encoding_of(source.randbytes(2000)) for _ in range(200)} == {None}


def test_encoding_of_cut_text_is_that_of_all() -> None:
    content = (JAPANESE * 9).encode("shift_jis")

    assert {encoding_of(content[:end]) for end in range(20, 60)} == {"cp932"}
