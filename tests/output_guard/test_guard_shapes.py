"""What a reference says of what it stands for: its ends, rows and columns, keys, pixels."""

import io
import json
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest
from guard_samples import FORMATS, b64
from guard_shelf import Shelf, guarded

CSV = "id,name,price\n" + "".join(f"{n},name {n},{n * 2}\n" for n in range(2000))


def parquet(rows: int, columns: int) -> bytes:
    out = io.BytesIO()
    pyarrow.parquet.write_table(pa.table({f"c{n}": list(range(rows)) for n in range(columns)}), out)
    return out.getvalue()


# Text, and what its reference says of its shape.
TEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "a table": (CSV, {"kind": "table", "rows": 2000, "columns": ["id", "name", "price"]}),
    "a table with tabs": (
        CSV.replace(",", "\t"),
        {"kind": "table", "rows": 2000, "columns": ["id", "name", "price"]},
    ),
    "prose": ("Word after word.\n" * 700, {"kind": "text", "lines": 700}),
    "an object": (
        json.dumps({"a": 1, "b": "word " * 3000}),
        {"kind": "object", "keys": ["a", "b"], "key_count": 2},
    ),
    "rows of JSON": (
        json.dumps([{"n": n, "text": "word"} for n in range(1000)]),
        {"kind": "table", "rows": 1000, "columns": ["n", "text"]},
    ),
    "lists of JSON": (json.dumps([[n, n] for n in range(3000)]), {"kind": "table", "rows": 3000, "width": 2}),
    "an object too large to read": (
        json.dumps({"first": 1, "rows": ["word " * 200] * 3000}),
        {"kind": "object", "keys": ["first", "rows"]},
    ),
    "rows too many to read": (
        json.dumps([{"n": n, "text": "word " * 20} for n in range(12_000)]),
        {"kind": "table", "columns": ["n", "text"]},
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_long_text_is_described_by_its_ends_and_its_shape(shelf: Shelf, name: str) -> None:
    text, shape = TEXTS[name]

    value = guarded({"v": text}, store=shelf).value["v"]

    assert value["preview"] == text[:200] + "..."
    assert value["tail"] == text[-80:]
    assert value["shape"] == shape


@pytest.mark.parametrize(("rows", "columns"), [(500, 1), (3, 40), (100_000, 2)])
def test_a_parquet_file_is_described_by_its_rows_and_columns(shelf: Shelf, rows: int, columns: int) -> None:
    value = guarded({"v": b64(parquet(rows, columns))}, store=shelf).value["v"]

    assert value["shape"] == {"kind": "table", "rows": rows, "width": columns}


@pytest.mark.parametrize("name", ["png", "jpeg", "gif", "webp", "bmp", "tiff"])
def test_an_image_is_described_by_its_pixels(shelf: Shelf, name: str) -> None:
    block = {"type": "image", "data": b64(FORMATS[name][1]()), "mimeType": FORMATS[name][0]}

    (found,) = guarded([block], store=shelf).value

    assert found["shape"] == {"kind": "image", "width": 40, "height": 40}


@pytest.mark.parametrize(
    "content", [b"PAR1" + bytes(2000) + b"PAR1", parquet(9, 9)[:-40] + bytes(32) + b"PAR1"]
)
def test_a_broken_file_has_no_shape(shelf: Shelf, content: bytes) -> None:
    value = guarded({"v": b64(content)}, store=shelf).value["v"]

    assert "shape" not in value
    assert shelf.contents == [content]
