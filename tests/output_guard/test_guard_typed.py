"""Content blocks that declare bytes lose them, whatever their size; the others stay as they are."""

from typing import Any

import pytest
from guard_samples import FORMATS, b64
from guard_shelf import Shelf, guarded

PNG = FORMATS["png"][1]()[:100]
IMAGE = {"type": "image", "data": b64(PNG), "mimeType": "image/png"}
AUDIO = {"type": "audio", "data": b64(b"RIFF"), "mimeType": "audio/wav"}
BLOB = {
    "type": "resource",
    "resource": {"uri": "t://a/b.pdf", "mimeType": "application/pdf", "blob": b64(b"%PDF")},
}
LINK = {"type": "resource_link", "uri": "t://x", "name": "x", "title": "X", "mimeType": "text/csv", "size": 9}
TEXT = {"type": "resource", "resource": {"uri": "t://t", "mimeType": "text/plain", "text": "hello"}}
SAID = {"type": "text", "text": "done"}


def test_blocks_keep_their_order_and_lose_their_bytes(shelf: Shelf) -> None:
    """Source: S4-24, S4-26 and S4-43."""
    value = guarded([SAID, IMAGE, LINK, AUDIO, TEXT, BLOB], store=shelf).value

    assert shelf.contents == [PNG, b"RIFF", b"%PDF"]
    assert [record.mime for record in shelf.records] == ["image/png", "audio/wav", "application/pdf"]
    assert [block["type"] for block in value] == [
        "text",
        "image",
        "resource_link",
        "audio",
        "resource",
        "resource",
    ]
    assert (value[0], value[2], value[4]) == (SAID, LINK, TEXT)
    assert value[5]["uri"] == "t://a/b.pdf"
    assert all("artifact" in value[index] for index in (1, 3, 5))
    assert not any(key in block for block in value for key in ("data", "blob"))


@pytest.mark.parametrize(
    "nest",
    [lambda block: block, lambda block: {"content": [block]}, lambda block: {"a": {"b": [[block]]}}],
    ids=["alone", "in content", "deep"],
)
def test_a_block_is_found_at_any_depth(shelf: Shelf, nest: Any) -> None:
    guarded(nest(IMAGE), store=shelf)

    assert shelf.contents == [PNG]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "data": "@@@", "mimeType": "image/png"},
        {"type": "audio", "data": None, "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "t://x", "blob": "***"}},
        {"type": "image", "data": "chart1", "caption": "no block at all"},
        {"type": "resource", "resource": "no object"},
        {"type": ["image"], "data": "AAAA"},
    ],
    ids=str,
)
def test_block_without_bytes_is_unchanged(shelf: Shelf, block: dict[str, Any]) -> None:
    """Source: S4-25 and S4-27."""
    assert guarded([block], store=shelf).value == [block]
    assert shelf.records == []


def test_data_that_do_not_decode_are_warned_of() -> None:
    done = guarded([{"type": "image", "data": "@@@", "mimeType": "image/png"}], store=None)

    assert [warning for warning in done.warnings if "base64" in warning]


def test_undeclared_mime_type_is_detected_from_bytes(shelf: Shelf) -> None:
    guarded([{"type": "image", "data": b64(PNG)}], store=shelf)

    assert shelf.records[0].mime == "image/png"


def test_the_blocks_of_the_sdk_are_blocks(shelf: Shelf) -> None:
    from mcp_types import ImageContent, TextContent

    blocks = [
        TextContent(type="text", text="hi"),
        ImageContent(type="image", data=b64(PNG), mime_type="image/png"),
    ]

    value = guarded(blocks, store=shelf).value

    assert shelf.contents == [PNG]
    assert value[0] == {"type": "text", "text": "hi"}
