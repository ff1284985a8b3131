"""A whole MCP result behind the guard is an MCP result again, by the SDK's own model."""

import base64
import json
from typing import Any

import anyio
import pytest
from guard_samples import FORMATS, PDF, b64
from guard_shelf import SCOPE, Shelf
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp_types import CallToolResult

from runner.output_guard.config import GuardConfig
from runner.output_guard.message import guard_message
from runner.output_guard.storing import Keeper

PNG = FORMATS["png"][1]()


def sent(message: dict[str, Any], store: Shelf | None) -> dict[str, Any]:
    async def run() -> Any:
        keeper = Keeper(config=GuardConfig(), store=store, scope=SCOPE, tool="t", server="s")
        return await guard_message(message, keeper)

    value: dict[str, Any] = anyio.run(run).value
    CallToolResult.model_validate(value, by_alias=True, by_name=False)
    return value


def shown(message: dict[str, Any]) -> int:
    texts = [block.get("text", "") for block in message["content"]]
    return sum(map(len, texts)) + len(json.dumps(message.get("structuredContent", ""), ensure_ascii=False))


def test_small_result_is_unchanged(shelf: Shelf) -> None:
    """Source: S4-40."""
    message = {"content": [{"type": "text", "text": "{}"}], "structuredContent": {}, "_meta": {"a": 1}}

    assert sent(message, shelf) == message


def test_text_of_result_nested_too_deep_has_reference(shelf: Shelf) -> None:
    deep: Any = "bottom"
    for _ in range(150):
        deep = {"k": deep}

    value = sent({"content": [{"type": "text", "text": "deep"}], "structuredContent": deep}, shelf)

    assert f"artifact://{shelf.records[0].id}" in value["content"][0]["text"]


def test_files_become_links_in_the_order_of_their_blocks(shelf: Shelf) -> None:
    """Source: S4-79."""
    blob = {"uri": "t://r.pdf", "mimeType": "application/pdf", "blob": b64(PDF)}
    content = [
        {"type": "text", "text": "first"},
        {"type": "image", "data": b64(PNG), "mimeType": "image/png"},
        {"type": "resource", "resource": blob},
        {"type": "text", "text": "last"},
    ]

    value = sent({"content": content, "isError": False}, shelf)

    assert [block["type"] for block in value["content"]] == ["text", "resource_link", "resource_link", "text"]
    link = value["content"][1]
    assert link["uri"] == f"artifact://{shelf.records[0].id}"
    assert (link["mimeType"], link["size"]) == ("image/png", len(PNG))
    assert value["isError"] is False
    descriptions = [each["description"] for each in value["content"][1:3]]
    ways = [f"read it as resource artifact://{record.id}" for record in shelf.records]
    assert [way in each for each, way in zip(descriptions, ways, strict=True)] == [True, True]
    assert ["Not shown" in each for each in descriptions] == [True, False]


@pytest.mark.parametrize("stored", [True, False])
def test_text_and_structured_content_are_guarded_alike(shelf: Shelf, stored: bool) -> None:
    payload = {"name": "x", "data": b64(PDF)}
    message = {"content": [{"type": "text", "text": json.dumps(payload)}], "structuredContent": payload}

    value = sent(message, shelf if stored else None)

    assert b64(PDF)[:60] not in json.dumps(value)
    assert json.loads(value["content"][0]["text"])["name"] == "x"
    assert value["structuredContent"]["name"] == "x"


@pytest.mark.parametrize(
    "message",
    [
        {"content": [{"type": "text", "text": "x " * 40_000}]},
        {"content": [{"type": "text", "text": "x " * 4_000}] * 30},
        {"content": [], "structuredContent": {"rows": [{"a": n} for n in range(20_000)]}},
        {
            "content": [{"type": "text", "text": "x y " * 2_400}] * 4,
            "structuredContent": {"t": ["x y " * 900] * 9},
        },
        {"content": [{"type": "resource", "resource": {"uri": "t://t", "text": "x " * 40_000}}]},
        {"content": [{"type": "image", "data": b64(PNG), "mimeType": "image/png"}] * 300},
    ],
    ids=["long text", "many texts", "many rows", "both", "embedded text", "many images"],
)
@pytest.mark.parametrize("stored", [True, False])
def test_visible_content_is_within_the_limit(shelf: Shelf, message: dict[str, Any], stored: bool) -> None:
    assert shown(sent(message, shelf if stored else None)) <= 50_000


DATA_URL = f"data:image/png;base64,{b64(PNG)}"
LINK = {"type": "resource_link", "uri": "https://example.com/r", "name": "Repo"}


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize(
    "fields",
    [
        {"icons": [{"src": DATA_URL, "mimeType": "image/png"}]},
        {"description": "word " * 4_000},
        {"title": "t" * 12_000},
        {"uri": "https://example.com/?" + "q" * 12_000},
        {"uri": DATA_URL},
        {"name": b64(PDF)},
    ],
    ids=["icons", "description", "title", "long uri", "uri of bytes", "name"],
)
def test_text_field_of_a_block_stays_text(shelf: Shelf, fields: dict[str, Any], stored: bool) -> None:
    value = sent({"content": [LINK | fields]}, shelf if stored else None)

    (block,) = value["content"]
    assert block["type"] == "resource_link"
    assert b64(PNG)[:60] not in json.dumps(block)
    assert b64(PDF)[:60] not in json.dumps(block)
    if stored:
        assert f"artifact://{shelf.records[0].id}" in json.dumps(block)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "text", "text": "x " * 9_000},
        {"type": "image", "data": b64(PNG), "mimeType": "image/png"},
        {"type": "resource", "resource": {"uri": "t://t", "blob": b64(PDF)}},
        LINK | {"description": "word " * 4_000},
    ],
    ids=lambda block: str(block["type"]),
)
def test_meta_of_a_block_stays(shelf: Shelf, block: dict[str, Any]) -> None:
    meta = {"example.com/id": 7, "bytes": b64(PNG)}

    value = sent({"content": [block | {"_meta": meta}]}, shelf)

    assert value["content"][0]["_meta"] == meta


_ODD = st.recursive(
    st.sampled_from(
        [None, True, 3, "", "a", "image", "image/png", b64(PNG), DATA_URL, "no base64!", "w " * 9_000]
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(
            st.sampled_from(["id", "uri", "src", "audience", "text", "blob", "summary"]), inner, max_size=3
        ),
    ),
    max_leaves=4,
)
_FIELDS = [
    "text",
    "data",
    "mimeType",
    "uri",
    "name",
    "resource",
    "icons",
    "annotations",
    "size",
    "_meta",
    "artifact",
]
_ODD_BLOCKS = st.one_of(
    _ODD,
    st.builds(
        lambda kind, fields: {"type": kind, **fields},
        st.sampled_from(["text", "image", "audio", "resource", "resource_link", "other"]),
        st.dictionaries(st.sampled_from(_FIELDS), _ODD, max_size=5),
    ),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_ODD_BLOCKS, max_size=3), _ODD, st.booleans())
def test_any_odd_result_becomes_a_valid_message(blocks: list[Any], extra: Any, stored: bool) -> None:
    message = {"content": blocks, "structuredContent": {"x": extra}, "isError": False}

    value = sent(message, Shelf() if stored else None)

    for block in value["content"]:
        # Stricter than the model, as the SDK of TypeScript is: no null, and base64 that can be decoded.
        assert None not in block.values()
        if block["type"] in ("image", "audio"):
            assert base64.b64decode(block["data"], validate=True) is not None


@pytest.mark.parametrize("data", [f"data:image/png;base64,{b64(PNG)}", b64(PNG)[:-3]], ids=["url", "clipped"])
def test_odd_base64_of_a_picture_becomes_a_link(shelf: Shelf, data: str) -> None:
    value = sent({"content": [{"type": "image", "data": data, "mimeType": "image/png"}]}, shelf)

    assert value["content"][0]["uri"] == f"artifact://{shelf.records[0].id}"
    assert shelf.contents[0][:100] == PNG[:100]


def test_a_picture_given_by_address_becomes_text(shelf: Shelf) -> None:
    address = "https://a.example/x.png"

    value = sent({"content": [{"type": "image", "data": address, "mimeType": "image/png"}]}, shelf)

    assert value["content"][0]["type"] == "text"
    assert address in value["content"][0]["text"]
