"""Hidden characters in what a server offers: escaped in texts, refused in names."""

import asyncio
from typing import Any

import pytest

from runner.protocol.visible_offers import visible_introduction, visible_list

TAGS = "".join(chr(0xE0000 + ord(char)) for char in "ab")
HIDDEN = f"Adds.{TAGS}\u202e\x1b[2J\x9b"
SHOWN = r"Adds.\U000e0061\U000e0062\u202e\x1b[2J\x9b"
KINDS = [
    ("tools/list", "tools", "name"),
    ("prompts/list", "prompts", "name"),
    ("resources/list", "resources", "uri"),
    ("resources/templates/list", "resourceTemplates", "uriTemplate"),
]


@pytest.mark.parametrize(("method", "key", "identifier"), KINDS)
def test_texts_of_every_list_are_visible(method: str, key: str, identifier: str) -> None:
    item = {
        identifier: "add",
        "title": HIDDEN,
        "description": HIDDEN,
        "annotations": {"title": HIDDEN},
        "arguments": [{"name": "a", "description": HIDDEN}],
        "inputSchema": {"properties": {"a": {"description": HIDDEN, "enum": ["x", HIDDEN]}}},
    }

    shown = asyncio.run(visible_list(method, {key: [item], "nextCursor": "n"}))

    assert shown["nextCursor"] == "n"
    assert shown[key] == [
        {
            identifier: "add",
            "title": SHOWN,
            "description": SHOWN,
            "annotations": {"title": SHOWN},
            "arguments": [{"name": "a", "description": SHOWN}],
            "inputSchema": {"properties": {"a": {"description": SHOWN, "enum": ["x", SHOWN]}}},
        }
    ]


def test_schema_values_to_be_sent_stay_exact() -> None:
    values: dict[str, Any] = {"enum": ["\x1f", "\x1e", "\n"], "const": {"a": "\x00"}, "default": ["\x1b"]}
    schema = {"properties": {"default": {**values, "description": "\x1b[2J"}}}

    shown = asyncio.run(visible_list("tools/list", {"tools": [{"name": "split", "inputSchema": schema}]}))

    assert shown["tools"][0]["inputSchema"]["properties"]["default"] == {
        **values,
        "description": r"\x1b[2J",
    }


@pytest.mark.parametrize(("method", "key", "identifier"), KINDS)
def test_item_with_a_hidden_name_is_left_out(
    method: str, key: str, identifier: str, caplog: pytest.LogCaptureFixture
) -> None:
    items = [{identifier: "add"}, {identifier: f"add{TAGS}"}, {identifier: "größe"}]

    shown = asyncio.run(visible_list(method, {key: items}))

    assert shown == {key: [{identifier: "add"}, {identifier: "größe"}]}
    assert [vars(record)["offer"] for record in caplog.records] == [r"add\U000e0061\U000e0062"]


def test_ordinary_list_is_returned_unchanged() -> None:
    listed: dict[str, Any] = {
        "tools": [{"name": "hello", "description": "Says hello.\n\n\tTo \U0001f468\u200d\U0001f469, été"}, 7],
    }

    assert asyncio.run(visible_list("tools/list", listed)) == listed
    assert asyncio.run(visible_list("tools/list", {"tools": None})) == {"tools": None}
    assert asyncio.run(visible_list("prompts/get", {"description": HIDDEN})) == {"description": HIDDEN}


def test_introduction_of_a_server_is_visible() -> None:
    introduced = {"instructions": HIDDEN, "serverInfo": {"name": "s", "title": HIDDEN}, "capabilities": {}}

    assert visible_introduction(introduced) == {
        "instructions": SHOWN,
        "serverInfo": {"name": "s", "title": SHOWN},
        "capabilities": {},
    }
    assert visible_introduction({"capabilities": {}}) == {"capabilities": {}}
