import csv
import io
import os
import struct
import zlib
from collections.abc import Callable, Mapping

import matplotlib as mpl
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from PIL import Image

from runner.files.facts import facts
from runner.formats import row_counts as rows

mpl.use("agg")

BINARY = "application/octet-stream"


def learnt(content: bytes, name: str = "file", mime: str = BINARY) -> Mapping[str, int | bool]:
    fd = os.memfd_create(name)
    try:
        os.write(fd, content)
        return facts(fd, mime=mime, name=name, size=len(content))
    finally:
        os.close(fd)


def image(kind: str, mode: str = "RGB", **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (321, 77)).save(buffer, kind, **options)
    return buffer.getvalue()


def parquet(table: pa.Table, **options: object) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **options)
    return buffer.getvalue()


def pdf(pages: int) -> bytes:
    buffer = io.BytesIO()
    with PdfPages(buffer) as file:
        for _ in range(pages):
            file.savefig(Figure())
    return buffer.getvalue()


def packed_pdf(*objects: bytes) -> bytes:
    """A PDF whose objects, numbered from 1, are in a compressed object stream, as since version 1.5."""
    places = [sum(len(body) + 1 for body in objects[:index]) for index in range(len(objects))]
    pairs = " ".join(f"{number} {place}" for number, place in enumerate(places, start=1)).encode() + b" "
    packed = zlib.compress(pairs + b" ".join(objects))
    head = b"<< /Type /ObjStm /N %d /First %d /Filter /FlateDecode /Length %d >>" % (
        len(objects),
        len(pairs),
        len(packed),
    )
    return b"%PDF-1.7\n9 0 obj\n" + head + b"\nstream\n" + packed + b"\nendstream\nendobj\n%%EOF"


MANY_TYPES = pa.table(
    {
        "day": pa.array([0, 1, 2], pa.date32()),
        "at": pa.array([0, 1, 2], pa.timestamp("us", tz="UTC")),
        "cents": pa.array([None, None, None], pa.decimal128(9, 2)),
        "names": pa.array([["a"], [], None], pa.list_(pa.string())),
        "place": pa.array([{"x": 1, "y": True}] * 3),
    }
)


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
def test_name_or_type_says_which_table_it_is_and_json_lines_have_no_header(
    name: str, mime: str, text: bytes, count: int
) -> None:
    assert learnt(text, name, mime) == {"rows": count}


@given(
    body=st.lists(st.sampled_from([b"a", b"b,", b",", b'"', b'""', b"\n", b"\r\n", b"\r"]), max_size=40),
    chunk=st.integers(1, 9),
)
def test_rows_are_what_the_csv_module_reads_wherever_the_chunks_end(body: list[bytes], chunk: int) -> None:
    text = b"a,b\n" + b"".join(body)
    lines = io.TextIOWrapper(io.BytesIO(text), "latin-1", newline="")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "_CHUNK", chunk)
        counted = learnt(text, "table.csv")

    assert counted == {"rows": sum(1 for row in csv.reader(lines) if row) - 1}


def test_a_large_table_is_estimated_from_its_beginning_and_says_so() -> None:
    count = rows.MAX_BYTES // 10
    whole, larger = (b"0123456789\n" * number for number in (count // 2, count * 2))

    estimated = learnt(larger, "table.csv")

    assert learnt(whole, "table.csv") == {"rows": count // 2 - 1}
    assert estimated.keys() == {"rows", "rows_estimated"}
    assert abs(estimated["rows"] - count * 2) < 5


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"a,b\n" + b"x" * (2 << 20) + b"\n", id="an endless row"),
        pytest.param(b'a,b\n"' + b"x\n" * (1 << 20), id="an endless field"),
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


def test_the_size_of_an_image_is_read_whatever_it_is_called_but_a_table_stays_a_table() -> None:
    assert learnt(image("PNG"), "picture.pdf", "application/pdf") == {"width": 321, "height": 77}
    assert learnt(b"BMI,age\n1,2\n", "bmi.csv") == {"rows": 1}
    assert learnt(b"BMI,age\n1,2\n" + bytes(99), "bmi.bin") == {}


@pytest.mark.parametrize("pages", [1, 12])
def test_a_pdf_has_the_pages_its_page_tree_counts(pages: int) -> None:
    assert learnt(pdf(pages)) == {"pages": pages}


def test_the_page_tree_is_found_in_a_compressed_object_stream() -> None:
    content = packed_pdf(
        b"<</Type/Catalog/Pages 2 0 R/Outlines 4 0 R>>",
        b"<</Type/Pages/Kids[3 0 R 5 0 R]/Count 12>>",
        b"<</Type/Pages/Parent 2 0 R/Kids[]/Count 5>>",
        b"<</Type/Outlines/Count 99>>",
    )

    assert learnt(content) == {"pages": 12}


def test_an_update_at_the_end_of_a_pdf_counts() -> None:
    update = b"\n2 0 obj\n<< /Type /Pages /Count 3 /Kids [] >>\nendobj\n"
    original = (
        b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog /Pages 2 0 R >>\nendobj\n"
        b"2 0 obj\n<< /Type /Pages /Count 7 /Kids [] >>\nendobj\n"
    )

    assert learnt(original) == {"pages": 7}
    assert learnt(original + b"%" * (9 << 20) + update) == {"pages": 3}


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"%PDF-1.4\n1 0 obj\n<< /Type /Pages /Count 7 >>\nendobj\n", id="no catalog"),
        pytest.param(b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog /Pages 2 0 R >>\nendobj\n", id="no tree"),
        pytest.param(
            b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog /Pages 2 0 R >>\nendobj\n"
            b"2 0 obj\n<< /Type /Pages /Count 3 0 R >>\nendobj\n",
            id="a count elsewhere",
        ),
        pytest.param(packed_pdf(b"<</Type/Catalog/Pages 2 0 R>>")[:120], id="cut off"),
    ],
)
def test_a_pdf_whose_pages_cannot_be_found_has_none(content: bytes) -> None:
    assert learnt(content) == {}


@pytest.mark.parametrize(
    ("table", "count"),
    [
        (pa.table({"a": pa.array([], pa.int64())}), 0),
        (MANY_TYPES, 3),
        (pa.table({f"column {number}": range(1234) for number in range(300)}), 1234),
    ],
)
def test_a_parquet_file_has_the_rows_its_footer_says(table: pa.Table, count: int) -> None:
    assert learnt(parquet(table)) == {"rows": count}


def test_a_parquet_file_of_several_row_groups_has_all_their_rows() -> None:
    assert learnt(parquet(pa.table({"a": range(1000)}), row_group_size=100)) == {"rows": 1000}


@pytest.mark.parametrize("length", [0, 4, 1 << 20, (1 << 32) - 1])
def test_a_footer_of_a_length_that_cannot_be_has_no_rows(length: int) -> None:
    content = parquet(MANY_TYPES)

    assert learnt(content[:-8] + length.to_bytes(4, "little") + b"PAR1") == {}


def test_a_footer_that_claims_endless_lists_and_depth_ends_soon() -> None:
    endless_list = b"\x29\xf1" + b"\xff" * 8 + b"\x7f"
    deep = b"\x2c" + b"\x1c" * 100_000
    for footer in (endless_list, deep, b"\x1b\x01", b"\x18" + b"\xff" * 9 + b"\x01"):
        content = b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"
        assert learnt(content) == {}


def test_a_file_that_cannot_be_read_has_no_facts_and_is_no_error() -> None:
    reading, writing = os.pipe()
    try:
        assert facts(reading, mime="text/csv", name="a.csv", size=9) == {}
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
    "pages.pdf": lambda: pdf(2),
    "packed.pdf": lambda: packed_pdf(b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Count 2>>"),
    "rows.parquet": lambda: parquet(MANY_TYPES),
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
    b"%PDF-",
    b"PAR1",
]


def sane(found: Mapping[str, int | bool]) -> bool:
    keys = found.keys()
    known = keys <= {"rows", "rows_estimated"} or keys == {"width", "height"} or keys == {"pages"}
    return known and all(0 <= value < 1 << 63 for value in found.values())


@given(start=st.sampled_from(STARTS), body=st.binary(max_size=400), name=st.sampled_from(sorted(SAMPLES)))
def test_random_bytes_never_raise_and_never_say_nonsense(start: bytes, body: bytes, name: str) -> None:
    tail = len(body).to_bytes(4, "little") + b"PAR1"

    assert sane(learnt(start + body, name))
    assert sane(learnt(start + body + tail))


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
