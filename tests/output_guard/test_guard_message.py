"""A whole MCP result behind the guard is an MCP result again, by the SDK's own model."""

import json
from typing import Any

import anyio
import pytest
from guard_samples import FORMATS, PDF, b64
from guard_shelf import SCOPE, Shelf
from mcp_types import CallToolResult

from runner.output_guard.config import GuardConfig
from runner.output_guard.message import guard_message

PNG = FORMATS["png"][1]()


def sent(message: dict[str, Any], store: Shelf | None) -> dict[str, Any]:
    async def run() -> Any:
        return await guard_message(
            message, tool="t", server="s", config=GuardConfig(), store=store, scope=SCOPE
        )

    value: dict[str, Any] = anyio.run(run).value
    CallToolResult.model_validate(value)
    return value


def shown(message: dict[str, Any]) -> int:
    texts = [block.get("text", "") for block in message["content"]]
    return sum(map(len, texts)) + len(json.dumps(message.get("structuredContent", ""), ensure_ascii=False))


def test_a_small_result_stays_as_it_is(shelf: Shelf) -> None:
    """Source: S4-40."""
    message = {"content": [{"type": "text", "text": "{}"}], "structuredContent": {}, "_meta": {"a": 1}}

    assert sent(message, shelf) == message


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
def test_what_a_host_may_show_is_within_the_limit(
    shelf: Shelf, message: dict[str, Any], stored: bool
) -> None:
    assert shown(sent(message, shelf if stored else None)) <= 50_000
