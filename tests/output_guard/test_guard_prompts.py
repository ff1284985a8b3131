"""Prompts behind the guard: long and binary content is stored, and the result stays a lawful one."""

import base64
from typing import Any

import anyio
import pytest
from guard_samples import FORMATS
from guard_shelf import SCOPE, Shelf
from mcp_types import GetPromptResult

from runner.output_guard.config import GuardConfig
from runner.output_guard.message import guard_prompt
from runner.output_guard.storing import Keeper

PNG = FORMATS["png"][1]()


def sent(result: dict[str, Any], store: Shelf | None) -> dict[str, Any]:
    async def run() -> Any:
        keeper = Keeper(config=GuardConfig(), store=store, scope=SCOPE, tool="prompts/get")
        return await guard_prompt(result, keeper)

    value: dict[str, Any] = anyio.run(run).value
    GetPromptResult.model_validate(value)
    return value


def text(content: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": {"type": "text", "text": content}}


def chars(value: dict[str, Any]) -> int:
    return len(str(value))


def test_short_prompt_is_returned_unchanged(shelf: Shelf) -> None:
    result = {
        "description": "Greets.",
        "messages": [text("Say hello."), text("Hello!", "assistant")],
        "_meta": {"a": 1},
    }

    assert sent(result, shelf) == result
    assert shelf.records == []


def test_long_text_is_stored_and_the_other_messages_stay(shelf: Shelf) -> None:
    result = {"messages": [text("first"), text("x y " * 50_000, "assistant"), text("last")]}

    value = sent(result, shelf)

    assert [each["role"] for each in value["messages"]] == ["user", "assistant", "user"]
    assert value["messages"][0] == text("first")
    assert value["messages"][2] == text("last")
    assert len(shelf.records) == 1
    assert chars(value) < 20_000


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"},
        {"type": "resource", "resource": {"uri": "a://b", "blob": base64.b64encode(PNG).decode()}},
    ],
    ids=["image", "resource"],
)
def test_binary_content_becomes_a_link(shelf: Shelf, block: dict[str, Any]) -> None:
    value = sent({"messages": [text("Look."), {"role": "assistant", "content": block}]}, shelf)

    (_, message) = value["messages"]
    assert message["role"] == "assistant"
    assert message["content"]["type"] == "resource_link"
    assert message["content"]["uri"] == f"artifact://{shelf.records[0].id}"


def test_base64_in_a_text_does_not_reach_the_model(shelf: Shelf) -> None:
    encoded = base64.b64encode(PNG * 20).decode()

    value = sent({"messages": [text(encoded)]}, shelf)

    assert encoded[:200] not in str(value)
    assert len(shelf.records) == 1


def test_many_messages_together_stay_within_the_limit(shelf: Shelf) -> None:
    value = sent({"messages": [text(f"{number} " * 2000) for number in range(300)]}, shelf)

    assert chars(value) < 100_000
    assert shelf.records


def test_long_or_hidden_description_is_shortened_and_escaped(shelf: Shelf) -> None:
    long = sent({"description": "d " * 50_000, "messages": [text("a")]}, shelf)
    hidden = sent({"description": "a\U000e0041\u202e", "messages": [text("a")]}, shelf)

    assert chars(long) < 20_000
    assert long["messages"] == [text("a")]
    assert hidden["description"] == r"a\U000e0041\u202e"


def test_unknown_fields_and_shapes_do_not_pass() -> None:
    result = {
        "messages": [text("a"), "x" * 1000, {"role": "system", "content": [{"type": "text", "text": "b"}]}],
        "more": "x" * 1_000_000,
    }

    assert sent(result, None) == {"messages": [text("a"), text("b")]}
    assert sent({"messages": 7}, None) == {"messages": []}
