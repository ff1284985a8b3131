import csv
import io
import os
import struct
from collections.abc import Callable, Mapping
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from runner.files.content_facts import facts
from runner.formats import row_counts as rows
from runner.formats.content_shape import part

BINARY = "application/octet-stream"


def learnt(content: bytes, name: str = "file", mime: str = BINARY) -> Mapping[str, int | bool]:
    return facts(partial(part, content), mime=mime, name=name, size=len(content))


def image(kind: str, mode: str = "RGB", **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (321, 77)).save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (b"", 0),
        (b"a,b\n", 0),
        (b"a,b\n1,2", 1),
        (b"a,b\n1,2\n", 1),
        (b"a,b\r\n1,2\r\n3,4\r\n", 2),
        (b"a,b\r1,2\r3,4", 2),
        (b'a,b\n"x\ny",2\n', 1),
        (b'a,b\n"say ""hi""\n",2\n3,4\n', 2),
        (b'a;b\n1;"x\ny"\n', 1),
        (b'size,item\n5" pipe,1\n6" pipe,2\n', 2),
        (b"a\n\n1\n\n\n2\n\n", 2),
        (b'\xef\xbb\xbf"a\nb",c\n1,2\n', 1),
        ("städte\nKöln\n".encode("latin-1"), 1),
        (b'a\n"never closed\n1\n2\n', 1),
    ],
)
def test_a_table_has_as_many_rows_as_follow_its_header(text: bytes, count: int) -> None:
    """Source: S1-43."""
    assert learnt(text, "table.csv") == {"rows": count}


@pytest.mark.parametrize(
    ("name", "mime", "text", "count"),
    [
        ("t.tsv", BINARY, b'a\tb\n1\t"x\ny"\n', 1),
        ("t.CSV", BINARY, b"a\n1\n", 1),
        ("table", "text/csv; charset=utf-8", b"a\n1\n", 1),
        ("t.jsonl", BINARY, b'{"a": 1}\n\n{"a": "\\n"}\n', 2),
        ("t.ndjson", BINARY, b'{"a": "\\""}\n{"a": 2}', 2),
        ("lines", "application/jsonl", b"1\n2\n3\n", 3),
    ],
)
def test_table_format_follows_name_or_type(name: str, mime: str, text: bytes, count: int) -> None:
    assert learnt(text, name, mime) == {"rows": count}


@given(
    body=st.lists(st.sampled_from([b"a", b"b,", b",", b'"', b'""', b"\n", b"\r\n", b"\r"]), max_size=40),
    chunk=st.integers(1, 9),
)
def test_rows_equal_csv_module_at_every_chunk_boundary(body: list[bytes], chunk: int) -> None:
    text = b"a,b\n" + b"".join(body)
    lines = io.TextIOWrapper(io.BytesIO(text), "latin-1", newline="")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "_CHUNK", chunk)
        counted = learnt(text, "table.csv")

    assert counted == {"rows": sum(1 for row in csv.reader(lines) if row) - 1}


def test_large_table_rows_are_marked_as_estimate() -> None:
    count = rows.MAX_BYTES // 10
    whole, larger = (b"0123456789\n" * number for number in (count // 2, count * 2))

    estimated = learnt(larger, "table.csv")

    assert learnt(whole, "table.csv") == {"rows": count // 2 - 1}
    assert estimated.keys() == {"rows", "rows_estimated"}
    assert abs(estimated["rows"] - count * 2) < 5


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"a,b\n" + b"x" * (600 << 10) + b"\n", id="an endless row"),
        pytest.param(b'a,b\n"' + b"x\n" * (300 << 10), id="an endless field"),
        pytest.param(b"a,b\n\0\0\n", id="binary"),
        pytest.param("a,b\n1,2\n".encode("utf-16"), id="two bytes a letter"),
        pytest.param(b"x" * 600 * 1024 + b"\n" + b"\0" * (rows.MAX_BYTES + 1), id="a hole"),
    ],
)
def test_what_is_no_table_that_can_be_counted_has_no_rows(content: bytes) -> None:
    assert learnt(content, "table.csv") == {}


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(image("PNG"), id="png"),
        pytest.param(image("GIF", "P"), id="gif"),
        pytest.param(image("JPEG"), id="jpeg"),
        pytest.param(image("JPEG", progressive=True), id="jpeg in passes"),
        pytest.param(image("JPEG", icc_profile=b"p" * 200_000, comment=b"c" * 999), id="jpeg with a profile"),
        pytest.param(image("WEBP"), id="webp"),
        pytest.param(image("WEBP", lossless=True), id="webp without loss"),
        pytest.param(image("WEBP", "RGBA", exif=b"Exif\0\0"), id="webp extended"),
        pytest.param(image("BMP"), id="bmp"),
        pytest.param(image("BMP")[:22] + struct.pack("<i", -77) + image("BMP")[26:], id="bmp from above"),
        pytest.param(image("TIFF"), id="tiff"),
        pytest.param(image("TIFF", big_endian=True), id="tiff of the other order"),
    ],
)
def test_an_image_has_the_size_its_header_says(content: bytes) -> None:
    """Source: S1-43."""
    assert learnt(content) == {"width": 321, "height": 77}


def test_image_size_is_read_under_any_name_except_tables() -> None:
    assert learnt(image("PNG"), "picture.pdf", "application/pdf") == {"width": 321, "height": 77}
    assert learnt(b"BMI,age\n1,2\n", "bmi.csv") == {"rows": 1}
    assert learnt(b"BMI,age\n1,2\n" + bytes(99), "bmi.bin") == {}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("book.pdf", b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog /Pages 2 0 R >>\nendobj\n", id="pdf"),
        pytest.param("rows.parquet", b"PAR1" + bytes(99) + b"PAR1", id="parquet"),
        pytest.param("sheet.xlsx", b"PK\x03\x04" + bytes(99), id="xlsx"),
    ],
)
def test_content_beyond_the_header_is_not_read_by_the_host(name: str, content: bytes) -> None:
    assert learnt(content, name) == {}


def test_a_file_that_cannot_be_read_has_no_facts_and_is_no_error() -> None:
    reading, writing = os.pipe()
    try:
        assert facts(partial(os.pread, reading), mime="text/csv", name="a.csv", size=9) == {}
    finally:
        os.close(reading)
        os.close(writing)


SAMPLES: Mapping[str, Callable[[], bytes]] = {
    "table.csv": lambda: b'a,b\n"x\ny",2\n3,"4"\n',
    "lines.jsonl": lambda: b'{"a": 1}\n{"a": 2}\n',
    "image.png": lambda: image("PNG"),
    "image.gif": lambda: image("GIF", "P"),
    "image.jpg": lambda: image("JPEG"),
    "image.webp": lambda: image("WEBP"),
    "image.bmp": lambda: image("BMP"),
    "image.tiff": lambda: image("TIFF"),
}
STARTS = [
    b"",
    b"\x89PNG\r\n\x1a\n",
    b"GIF89a",
    b"\xff\xd8\xff",
    b"RIFF0000WEBP",
    b"BM",
    b"II*\0",
    b"MM\0*",
]


def sane(found: Mapping[str, int | bool]) -> bool:
    keys = found.keys()
    known = keys <= {"rows", "rows_estimated"} or keys == {"width", "height"}
    return known and all(0 <= value < 1 << 63 for value in found.values())


@given(start=st.sampled_from(STARTS), body=st.binary(max_size=400), name=st.sampled_from(sorted(SAMPLES)))
def test_random_bytes_never_raise_and_never_say_nonsense(start: bytes, body: bytes, name: str) -> None:
    assert sane(learnt(start + body, name))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_damaged_file_never_raises_and_never_says_nonsense(name: str) -> None:
    content = SAMPLES[name]()
    assert learnt(content, name)

    @settings(max_examples=150)
    @given(
        flips=st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)), max_size=12),
        cut=st.integers(0, len(content)),
    )
    def damaged(flips: list[tuple[int, int]], cut: int) -> None:
        damage = bytearray(content)
        for at, value in flips:
            damage[at] = value
        assert sane(learnt(bytes(damage), name))
        assert sane(learnt(bytes(damage[:cut]), name))

    damaged()
