"""Shapes in references: ends, rows and columns of text, keys, pixels."""

import io
import json
from typing import Any

import pytest
from guard_samples import FORMATS, b64
from guard_shelf import Shelf, guarded
from PIL import Image

CSV = "id,name,price\n" + "".join(f"{n},name {n},{n * 2}\n" for n in range(2000))


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


@pytest.mark.parametrize("name", ["png", "jpeg", "gif", "webp", "bmp", "tiff"])
def test_an_image_is_described_by_its_pixels(shelf: Shelf, name: str) -> None:
    block = {"type": "image", "data": b64(FORMATS[name][1]()), "mimeType": FORMATS[name][0]}

    (found,) = guarded([block], store=shelf).value

    assert found["shape"] == {"kind": "image", "width": 40, "height": 40}


def test_image_size_after_long_profile_is_found(shelf: Shelf) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30)).save(buffer, "JPEG", icc_profile=b"p" * 200_000)
    block = {"type": "image", "data": b64(buffer.getvalue()), "mimeType": "image/jpeg"}

    (found,) = guarded([block], store=shelf).value

    assert found["shape"] == {"kind": "image", "width": 40, "height": 30}


@pytest.mark.parametrize("content", [b"PAR1" + bytes(2000) + b"PAR1", b"\x89PNG\r\n\x1a\n" + bytes(2000)])
def test_unread_or_broken_content_has_no_shape(shelf: Shelf, content: bytes) -> None:
    value = guarded({"v": b64(content)}, store=shelf).value["v"]

    assert "shape" not in value
    assert shelf.contents == [content]
