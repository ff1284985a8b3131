"""Parts of a result that clients and people receive, and parts they never receive."""

import asyncio
import base64
import itertools
import json
from typing import Any

import jsonschema
import pytest
from fastmcp import Client, FastMCP
from fastmcp.utilities.types import Image
from hypothesis import example, given
from hypothesis import strategies as st
from mcp_types import CallToolResult, Tool
from pydantic import BaseModel
from result_fakes import FakeHome, Shelf, contract_like

from runner.artifacts.accept import NEVER_INLINE, ArtifactFile, Processed, failed, process_artifacts
from runner.contract.error_messages import outside_home, timed_out
from runner.contract.normalise import normalise
from runner.errors import CallError, Code
from runner.formats.human_numbers import human_size
from runner.protocol.result_messages import DELIVERY_KEY, inline_limit_of
from runner.settings.settings import Settings
from runner.steps.client_message import MESSAGE_MAX_BYTES, Delivery, is_open_schema, render
from runner.steps.model_view import model_view
from runner.steps.shell_view import as_text
from sandbox.deadlines import Deadlines

OPEN: dict[str, Any] = {"type": "object", "additionalProperties": True}
WRAPPED: dict[str, Any] = {
    "type": "object",
    "properties": {"result": {}},
    "required": ["result"],
    "x-fastmcp-wrap-result": True,
}
CLOSED: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}}


def taken(
    wire: dict[str, Any],
    home: FakeHome | None,
    shelf: Any,
    *,
    inline_max_bytes: int = 2**20,
    schema: Any = None,
) -> Processed:
    return asyncio.run(
        process_artifacts(
            normalise(wire, wrapped=bool((schema or {}).get("x-fastmcp-wrap-result"))),
            home=home,
            inline_max_bytes=inline_max_bytes,
            max_bytes=2**30,
            keep=shelf,
        )
    )


def rendered(
    wire: dict[str, Any],
    home: FakeHome | None,
    shelf: Any,
    *,
    schema: Any = OPEN,
    delivery: Delivery = Delivery.REFERENCE,
    max_bytes: int = MESSAGE_MAX_BYTES,
    download_url: Any = None,
    allowed_origins: Any = (),
) -> dict[str, Any]:
    return render(
        taken(wire, home, shelf, schema=schema),
        wire=wire,
        output_schema=schema,
        delivery=delivery,
        max_bytes=max_bytes,
        download_url=download_url,
        allowed_origins=allowed_origins,
    )


def report_wire(home: FakeHome, **value: Any) -> dict[str, Any]:
    (home.path / "r.html").write_bytes(b"hi")
    artifact = {"name": "r.html", "path": f"{home.path}/r.html", "mime": "text/html", "category": "report"}
    structured = {"results": {"rows": 1}, "artifacts": [artifact], **value}
    return {"structuredContent": structured, "content": [text(json.dumps(structured))], "isError": False}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def texts(message: dict[str, Any]) -> str:
    return "\n".join(block["text"] for block in message["content"] if block["type"] == "text")


# schemas


@pytest.mark.parametrize(
    ("schema", "is_open"),
    [
        (None, True),
        ({}, True),
        (OPEN, True),
        ({"type": "object", "title": "x", "properties": {}, "required": []}, True),
        (WRAPPED, False),
        (CLOSED, False),
        ({"type": "object", "additionalProperties": False}, False),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, False),
        ({"type": "object", "required": ["a"]}, False),
        ({"anyOf": [{"type": "object"}]}, False),
        ({"$ref": "#/x"}, False),
    ],
    ids=repr,
)
def test_schema_is_open_if_any_object_satisfies_it(schema: Any, is_open: bool) -> None:
    assert is_open_schema(schema) is is_open


class Place(BaseModel):
    path: str
    n: int = 1


def test_structured_content_of_every_tool_kind_fits_its_schema(home: FakeHome, shelf: Shelf) -> None:
    (home.path / "r.html").write_bytes(b"hi")
    where = f"{home.path}/r.html"
    app = FastMCP("kinds")
    returns: dict[str, tuple[Any, Any]] = {
        "an_int": (int, 3),
        "a_str": (str, where),
        "a_list": (list[int], [1, 2]),
        "a_model": (Place, Place(path=where)),
        "a_dict": (dict, {"results": 1, "artifacts": [{"name": "r.html", "path": where}]}),
        "a_map": (dict[str, int], {"a": 1}),
        "nothing": (None, None),
    }
    for name, (kind, value) in returns.items():
        app.tool(name=name)(_plain(value, kind))

    seen = {}
    for listed, wire in asyncio.run(_called(app)):
        message = rendered(wire, home, shelf, schema=listed.output_schema)
        if listed.output_schema is not None:
            jsonschema.validate(message["structuredContent"], listed.output_schema)
        CallToolResult.model_validate(message)
        seen[listed.name] = message

    assert seen["an_int"]["structuredContent"] == {"result": 3}
    assert seen["an_int"]["_meta"]["toolcell/result"] == {"results": 3}
    assert seen["an_int"]["_meta"]["fastmcp"] == {"wrap_result": True}
    assert seen["a_map"]["structuredContent"] == {"a": 1}
    assert seen["a_dict"]["structuredContent"]["artifacts"][0]["uri"].startswith("artifact://art_")
    assert "structuredContent" not in seen["nothing"]
    assert seen["nothing"]["_meta"]["toolcell/result"] == {"results": None}


async def _called(app: FastMCP[Any]) -> list[tuple[Tool, dict[str, Any]]]:
    async with Client(app) as client:
        return [
            (tool, (await client.call_tool_mcp(tool.name, {})).model_dump(by_alias=True, exclude_none=True))
            for tool in await client.list_tools()
        ]


def _plain(value: Any, kind: Any) -> Any:
    def tool() -> Any:
        return value

    tool.__annotations__["return"] = kind
    return tool


# reference


def test_reference_has_everything_but_bytes(home: FakeHome, shelf: Shelf) -> None:
    """Source: S2-9 and S2-38."""
    message = rendered(report_wire(home), home, shelf, download_url=lambda file: f"https://h/{file.id}")

    uri = message["structuredContent"]["artifacts"][0]["uri"]
    value = {
        "results": {"rows": 1},
        "artifacts": [
            {
                "name": "r.html",
                "mime": "text/html",
                "size": 2,
                "category": "report",
                "uri": uri,
                "sha256": "8f434346648f6b96df89dda901c5176b10a6d83961dd3c1ac88b59b2dc327aa4",
            }
        ],
    }
    assert uri == "artifact://art_8f434346648f"
    assert message == {
        "content": [
            text(json.dumps(value, separators=(",", ":"))),
            {
                "type": "resource_link",
                "uri": uri,
                "name": "r.html",
                "mimeType": "text/html",
                "size": 2,
                "_meta": {"toolcell/download": "https://h/art_8f434346648f"},
            },
        ],
        "isError": False,
        "structuredContent": value,
        "_meta": {
            "toolcell/display": {
                "open": True,
                "order": ["r.html"],
                "viewer": "html",
                "mode": "replace",
                "storage_action": "store",
                "stored": True,
                "scripts_executable": False,
            }
        },
    }


def test_deferred_file_is_reference_and_bytes_reach_no_text(home: FakeHome, shelf: Shelf) -> None:
    (home.path / "draft.txt").write_bytes(b"hi")
    path = f"{home.path}/draft.txt"
    draft = {"name": "draft.txt", "path": path, "mime": "text/plain", "next_actions": [path]}

    processed = taken({"structuredContent": {"results": 1, "deferred_artifacts": [draft]}}, home, shelf)
    processed.value["deferred_artifacts"][0]["b64"] = "aGlkZGVu"
    reference = render(processed, wire={}, output_schema=None, delivery=Delivery.REFERENCE)
    inline = render(processed, wire={}, output_schema=None, delivery=Delivery.INLINE)

    entry = reference["structuredContent"]["deferred_artifacts"][0]
    assert entry["uri"] == "artifact://art_8f434346648f"
    assert entry["next_actions"] == [entry["uri"]]
    assert not {"path", "b64"} & entry.keys()
    assert inline["structuredContent"]["deferred_artifacts"][0]["b64"] == "aGlkZGVu"
    assert "aGlkZGVu" not in texts(inline)
    assert str(home.path) not in json.dumps([reference, inline])


def test_repeated_path_becomes_same_reference(home: FakeHome, shelf: Shelf) -> None:
    wire = report_wire(home, results={"saved": f"{home.path}/r.html"})

    message = rendered(wire, home, shelf)

    assert message["structuredContent"]["results"] == {"saved": "artifact://art_8f434346648f"}
    assert str(home.path) not in json.dumps(message)


def test_object_store_places_never_appear(home: FakeHome, shelf: Shelf) -> None:
    """Source: S1-11."""
    result = taken(report_wire(home), home, shelf, inline_max_bytes=NEVER_INLINE)
    assert "s3_ref" in result.value["artifacts"][0]

    for delivery in Delivery:
        message = render(result, wire={}, output_schema=OPEN, delivery=delivery)
        assert "s3_ref" not in json.dumps(message)
        assert "user-storage" not in json.dumps(message)


# inline


def test_inline_bytes_in_structure_and_never_in_text(home: FakeHome, shelf: Shelf) -> None:
    """Source: S0-19, S2-11 and S2-39."""
    message = rendered(report_wire(home), home, shelf, delivery=Delivery.INLINE)

    entry = {"name": "r.html", "b64": "aGk=", "mime": "text/html", "size": 2, "category": "report"}
    assert message["structuredContent"]["artifacts"] == [entry]
    assert len(message["content"]) == 1
    assert "aGk=" not in texts(message)


def test_message_above_transport_limit_uses_references(home: FakeHome, shelf: Shelf) -> None:
    wire = report_wire(home)
    (home.path / "r.html").write_bytes(b"x" * MESSAGE_MAX_BYTES)

    message = rendered(wire, home, shelf, delivery=Delivery.INLINE)

    value = message["structuredContent"]
    assert len(json.dumps(message)) < 10_000
    assert value["meta_data"]["delivery"] == "reference"
    assert "too large" in value["meta_data"]["delivery_reason"]
    assert value["artifacts"][0]["uri"].startswith("artifact://")
    assert message["content"][-1]["type"] == "resource_link"


def test_unsendable_content_is_not_encoded() -> None:
    assert inline_limit_of(Settings(), {}) == NEVER_INLINE
    assert inline_limit_of(Settings(), {"_meta": {DELIVERY_KEY: "inline"}}) == MESSAGE_MAX_BYTES


# closed schemas


def test_closed_schema_keeps_value_and_text_with_paths_replaced(home: FakeHome, shelf: Shelf) -> None:
    wire = report_wire(home)
    wire["content"].append(text(f"Written to {home.path}/r.html."))

    message = rendered(wire, home, shelf, schema=CLOSED)

    uri = "artifact://art_8f434346648f"
    assert message["structuredContent"]["artifacts"][0]["path"] == uri
    assert json.loads(message["content"][0]["text"]) == message["structuredContent"]
    assert message["content"][1]["text"] == f"Written to {uri}."
    assert message["_meta"]["toolcell/result"]["artifacts"][0]["uri"] == uri
    assert str(home.path) not in json.dumps(message)


def test_closed_schema_text_has_no_base64_in_either_delivery(shelf: Shelf) -> None:
    structured = {"results": "ok", "artifacts": [{"name": "a.txt", "b64": "aGk=", "mime": "text/plain"}]}
    wire = {"structuredContent": structured, "content": [text(json.dumps(structured))]}

    inline = rendered(wire, None, shelf, schema=CLOSED, delivery=Delivery.INLINE)
    reference = rendered(wire, None, shelf, schema=CLOSED)

    assert "aGk=" not in texts(inline) + json.dumps(reference)
    assert inline["structuredContent"] == structured


def test_closed_schema_text_names_undelivered_files(home: FakeHome, shelf: Shelf) -> None:
    wire = report_wire(home)
    (home.path / "r.html").unlink()

    message = rendered(wire, home, shelf, schema=CLOSED)

    assert "Not delivered: r.html (missing_path)" in texts(message)
    assert message["isError"] is False


def test_value_equal_to_short_name_by_chance_stays(home: FakeHome, shelf: Shelf) -> None:
    wire = report_wire(home)
    wire["structuredContent"]["artifacts"][0]["path"] = "r.html"

    message = rendered(wire, home, shelf, schema=CLOSED)

    entry = message["structuredContent"]["artifacts"][0]
    assert (entry["name"], entry["path"]) == ("r.html", "artifact://art_8f434346648f")


# errors


def test_error_is_one_text_with_envelope() -> None:
    error = timed_out(Deadlines(), limit="idle", last_progress=None)

    message = render(failed(error), wire={}, output_schema=OPEN, delivery=Delivery.REFERENCE)

    assert message["isError"] is True
    assert [json.loads(block["text"]) for block in message["content"]] == [failed(error).value]
    assert message["structuredContent"] == failed(error).value


def test_closed_schema_error_has_no_structured_content() -> None:
    error = timed_out(Deadlines(), limit="idle", last_progress=None)

    message = render(failed(error), wire={}, output_schema=CLOSED, delivery=Delivery.REFERENCE)

    assert "structuredContent" not in message
    assert message["_meta"] == {"toolcell/result": failed(error).value}


def test_error_reported_in_value_sets_is_error(shelf: Shelf) -> None:
    wire = {"structuredContent": {"results": {"error": "no"}, "meta_data": {"is_error": True}}, "content": []}

    assert rendered(wire, None, shelf)["isError"] is True


# blocks


def test_images_stay_and_embedded_blobs_become_links(shelf: Shelf) -> None:
    image = (
        Image(data=b"\x89PNG", format="png").to_image_content().model_dump(by_alias=True, exclude_none=True)
    )
    blob = {"type": "resource", "resource": {"uri": "x://a/b.bin", "mimeType": "x/y", "blob": "AAEC"}}
    note = {"type": "resource", "resource": {"uri": "x://note", "text": "hi"}}
    wire = {"content": [text("Look"), image, blob, note, text("!")]}

    message = rendered(wire, None, shelf)

    assert [block["type"] for block in message["content"]] == [
        "text",
        "image",
        "resource_link",
        "resource",
        "text",
    ]
    assert message["content"][1] == image
    assert message["content"][2]["name"] == "b.bin"
    assert message["_meta"]["toolcell/result"]["results"] == "Look\n!"
    assert [item["name"] for item in message["_meta"]["toolcell/result"]["artifacts"]] == [
        "image_1.png",
        "b.bin",
    ]


def test_image_above_message_size_becomes_link(shelf: Shelf) -> None:
    image = {"type": "image", "data": "A" * MESSAGE_MAX_BYTES, "mimeType": "image/png"}

    message = rendered({"content": [image]}, None, shelf)

    assert [block["type"] for block in message["content"]] == ["resource_link"]
    assert message["_meta"]["toolcell/result"]["meta_data"]["delivery"] == "reference"


def test_refused_blocks_are_named_to_client(shelf: Shelf) -> None:
    bad = {"type": "image", "data": "TVqQAA==", "mimeType": "application/x-msdownload"}

    message = rendered({"content": [text("see"), bad]}, None, shelf)

    assert message["content"][0] == text("see")
    assert "image_1 (unknown_type)" in message["content"][1]["text"]
    assert "TVqQAA" not in json.dumps(message["content"])


def test_picture_sent_in_standard_base64_with_type(shelf: Shelf) -> None:
    data = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mP4z8AAAAMBAQD3A0FDAAAAAElFTkSuQmCC"
    block = {"type": "image", "data": f"data:image/png;base64,{data}", "mimeType": ""}

    message = rendered({"content": [text("see"), block]}, None, shelf)

    assert message["content"][1] == {"type": "image", "data": data, "mimeType": "image/png"}


def test_text_beside_payload_reaches_client(shelf: Shelf) -> None:
    """Source: S2-2 and S2-36."""
    wire = {"structuredContent": {"results": 1}, "content": [text('{"results":1}'), text("Note: rounded")]}

    message = rendered(wire, None, shelf)

    assert [block["text"] for block in message["content"]] == ['{"results":1}', "Note: rounded"]


def test_second_result_block_shown_without_file_bytes(shelf: Shelf) -> None:
    file = {"name": "a.txt", "b64": "c2VjcmV0", "mime": "text/plain"}
    second = {"results": 2, "artifacts": [file, "junk"], "returned_file_contents": ["c2VjcmV0"]}
    wire = {"structuredContent": {"results": 1}, "content": [text(json.dumps(second))]}

    message = rendered(wire, None, shelf)

    assert [json.loads(block["text"]) for block in message["content"]] == [
        {"results": 1},
        {"results": 2, "artifacts": [{"name": "a.txt", "mime": "text/plain"}]},
    ]


# what never reaches a model, or a client


def test_model_sees_no_tokens_and_no_oversized_facts(shelf: Shelf) -> None:
    """Source: S0-4, S2-7 and S2-37."""
    canvas = {"open": True, "url": "https://h/x", "token": "secret-capability"}
    wire = {
        "structuredContent": {"results": 1, "canvas": canvas, "meta_data": {"k": "x" * 5000}},
        "content": [],
    }

    message = rendered(wire, None, shelf)

    assert "secret-capability" not in texts(message) + json.dumps(message["structuredContent"])
    assert message["_meta"]["toolcell/canvas"] == canvas
    assert len(texts(message)) < 500
    assert json.loads(texts(message))["meta_data_truncated"] is True


@pytest.mark.parametrize("key", ["canvas", "display"])
@pytest.mark.parametrize("schema", [OPEN, CLOSED], ids=["open", "closed"])
def test_page_token_hidden_from_model_in_both_spellings(schema: Any, key: str, shelf: Shelf) -> None:
    page = {"type": "iframe", "url": "https://h/x", "token": "secret-capability"}
    payload = {"results": 1, key: page}
    wire = {"structuredContent": payload, "content": [text(json.dumps(payload))]}

    message = rendered(wire, None, shelf, schema=schema, allowed_origins=["https://h"])

    assert "secret-capability" not in texts(message) + json.dumps(message["structuredContent"])
    assert "https://h/x" in texts(message)
    assert message["_meta"]["toolcell/display"]["iframe"]["token"] == "secret-capability"


def test_closed_schema_token_replaced_by_placeholder(shelf: Shelf) -> None:
    page = {"type": "iframe", "url": "https://h/x", "token": "secret-capability"}
    wire = {"structuredContent": {"results": 1, "canvas": page}, "content": []}

    message = rendered(wire, None, shelf, schema=CLOSED)

    assert message["structuredContent"]["canvas"] == {**page, "token": "withheld"}
    assert message["_meta"]["toolcell/result"]["canvas"] == page


LARGE = {"k": "x" * 5000}


def facts_schema(meta_data: dict[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"results": {}, "meta_data": meta_data},
        "required": list(required),
        "additionalProperties": False,
    }


def test_oversized_facts_in_meta_and_never_model_visible(shelf: Shelf) -> None:
    payload = {"results": 1, "meta_data": {"rows": 3, **LARGE}}
    wire = {"structuredContent": payload, "content": [text(json.dumps(payload))]}

    message = rendered(wire, None, shelf)

    assert message["structuredContent"] == {"results": 1, "meta_data_truncated": True}
    assert json.loads(texts(message)) == message["structuredContent"]
    assert message["_meta"]["toolcell/meta_data"] == payload["meta_data"]


def test_small_facts_stay(shelf: Shelf) -> None:
    payload = {"results": 1, "meta_data": {"rows": 3}}

    message = rendered({"structuredContent": payload}, None, shelf)

    assert message["structuredContent"] == payload
    assert "_meta" not in message


@pytest.mark.parametrize(
    ("meta_data", "required", "left"),
    [
        ({"type": "object"}, (), {}),
        ({"type": "object"}, ("meta_data",), {"meta_data": {}}),
        (
            {"type": "object", "required": ["k", "n"], "properties": {"k": {"type": "string"}}},
            ("meta_data",),
            {"meta_data": {"k": "[5000 characters removed, see content]", "n": 1}},
        ),
        (
            {"properties": {"k": {"minItems": 1, "items": {"type": "string"}}}, "required": ["k"]},
            ("meta_data",),
            {"meta_data": {"k": ["[5000 characters removed, see content]"] * 2, "n": 1}},
        ),
    ],
    ids=["may be left out", "has to be there", "has to have a text", "has to have an item"],
)
def test_closed_schema_gets_shortest_allowed_facts(
    meta_data: dict[str, Any], required: tuple[str, ...], left: dict[str, Any], shelf: Shelf
) -> None:
    large = ["x" * 5000] * 3 if "items" in json.dumps(meta_data) else "x" * 5000
    payload = {"results": 1, "meta_data": {"k": large, "n": 1}}
    schema = facts_schema(meta_data, "results", *required)
    jsonschema.validate(payload, schema)

    message = rendered(
        {"structuredContent": payload, "content": [text(json.dumps(payload))]}, None, shelf, schema=schema
    )

    assert message["structuredContent"] == {"results": 1, **left}
    jsonschema.validate(message["structuredContent"], schema)
    assert message["_meta"]["toolcell/result"]["meta_data"] == payload["meta_data"]
    assert "x" * 100 not in texts(message)


def test_facts_required_by_schema_drop_structured_content(shelf: Shelf) -> None:
    payload = {"results": 1, "meta_data": LARGE}
    schema = facts_schema({"const": LARGE}, "meta_data")

    message = rendered({"structuredContent": payload}, None, shelf, schema=schema)

    assert "structuredContent" not in message
    assert message["_meta"]["toolcell/result"]["meta_data"] == LARGE


def test_wrapped_contract_value_withholds_facts_and_tokens(shelf: Shelf) -> None:
    page = {"type": "iframe", "url": "https://h/x", "token": "secret-capability"}
    payload = {"results": 1, "meta_data": LARGE, "canvas": page}
    wire = {"structuredContent": {"result": payload}, "content": [text(json.dumps(payload))]}

    message = rendered(wire, None, shelf, schema=WRAPPED)

    canvas = {**page, "token": "withheld"}
    assert message["structuredContent"] == {
        "result": {"results": 1, "canvas": canvas, "meta_data_truncated": True}
    }
    assert "secret-capability" not in texts(message)


@pytest.mark.parametrize("schema", [OPEN, CLOSED], ids=["open", "closed"])
def test_oversized_facts_in_older_spelling_withheld(schema: Any, shelf: Shelf) -> None:
    payload = {"results": 1, "meta-data": LARGE}
    wire = {"structuredContent": payload, "content": [text(json.dumps(payload))]}

    message = rendered(wire, None, shelf, schema=schema)

    assert message["structuredContent"] == {"results": 1, "meta_data_truncated": True}
    assert "x" * 100 not in texts(message)


def test_oversized_facts_still_show_failure_and_missing_files(
    shelf: Shelf,
) -> None:
    payload = {
        "results": {"error": "no"},
        "artifacts": [{"name": "a.txt", "b64": "@", "mime": "text/plain"}],
        "meta_data": {"is_error": True, "error_code": "E_TOOL", "trace": "secret " * 800},
    }

    message = rendered({"structuredContent": payload}, None, shelf)

    assert json.loads(message["content"][0]["text"]) == {
        "results": {"error": "no"},
        "meta_data_truncated": True,
        "meta_data": {
            "is_error": True,
            "error_code": "E_TOOL",
            "artifact_errors": [{"name": "a.txt", "reason": "invalid_base64"}],
        },
    }


def test_facts_added_by_runner_count_for_budget(shelf: Shelf) -> None:
    payload = {"results": 1, "meta_data": {"a": "x" * 4060}}
    wire = {"structuredContent": {**payload, "artifacts": [{"name": "a", "b64": "aGk=", "mime": "a/b"}]}}
    huge = {"type": "image", "mimeType": "image/png", "data": "AAAA" * 300_000}

    small = rendered({"structuredContent": payload}, None, shelf)
    noted = rendered({**wire, "content": [huge]}, None, shelf)

    assert "meta_data_truncated" not in small["structuredContent"]
    assert noted["_meta"]["toolcell/meta_data"]["delivery"] == "reference"
    assert noted["structuredContent"]["meta_data_truncated"] is True
    assert "x" * 100 not in noted["content"][0]["text"]


def test_client_told_file_to_show_if_any(shelf: Shelf) -> None:
    payload = {"results": 1, "display": {"type": "iframe", "url": "https://dash.example.com/v"}}

    allowed = rendered(
        {"structuredContent": payload}, None, shelf, allowed_origins=["https://dash.example.com"]
    )
    refused = rendered({"structuredContent": payload}, None, shelf)
    plain = rendered({"structuredContent": {"results": 1}}, None, shelf)

    assert allowed["_meta"]["toolcell/display"]["iframe"]["src"] == "https://dash.example.com/v"
    assert "origin" in refused["_meta"]["toolcell/display"]["reason"]
    assert "_meta" not in plain


def test_tool_cannot_pass_its_facts_as_ours(shelf: Shelf) -> None:
    wire = {"content": [], "_meta": {"toolcell/result": "forged", "own": 1}}

    assert rendered(wire, None, shelf)["_meta"] == {"own": 1, "toolcell/result": {"results": None}}


def test_non_utf8_wire_result_can_be_sent(shelf: Shelf) -> None:
    wire = {"structuredContent": {"a": "\ud800"}, "content": [text("\udfff")], "_meta": {"x": "\ud800"}}

    for schema in (OPEN, CLOSED):
        json.dumps(rendered(wire, None, shelf, schema=schema), ensure_ascii=False).encode()


def test_model_view_of_a_stored_artifact_is_only_its_description() -> None:
    """Source: S1-64."""
    entry = {"name": "q.html", "size": 5, "s3_ref": {"bucket": "user-storage", "key": "alice/x"}}

    assert model_view({"results": 1, "artifacts": [entry]}) == {
        "results": 1,
        "artifacts": [{"name": "q.html", "size": 5}],
    }


@given(st.dictionaries(st.sampled_from(["structuredContent", "content", "isError", "_meta"]), contract_like))
@example({"content": [{"results": None, "uri": []}]})
def test_any_result_becomes_sendable_message(wire: dict[str, Any]) -> None:
    for schema, delivery in itertools.product((OPEN, CLOSED, WRAPPED), Delivery):
        result = taken(wire, None, Shelf(), schema=schema)
        message = render(result, wire=wire, output_schema=schema, delivery=delivery)

        json.dumps(message, ensure_ascii=False, allow_nan=False).encode()
        as_text(result).encode()


# people


def test_printed_result_shows_results_files_then_missing(home: FakeHome, shelf: Shelf) -> None:
    wire = report_wire(home)
    wire["structuredContent"]["artifacts"].append({"name": "p", "path": "/etc/passwd", "mime": "text/plain"})
    wire["content"] = [text("One file is missing.")]

    shown = as_text(taken(wire, home, shelf))

    assert shown == (
        '{\n  "rows": 1\n}\n'
        "One file is missing.\n"
        "r.html  (2B, text/html)\n"
        "not delivered: p: File operation outside allowed directory"
    )


def test_printed_error_has_three_parts(home: FakeHome) -> None:
    text = as_text(failed(outside_home("/etc/passwd", home.path)))

    assert text == (
        "Error: File operation outside allowed directory [E_INVALID_PATH]\n"
        "  attempted path: /etc/passwd\n"
        f"  allowed prefix: {home.path}/\n"
        f"What to do: Use {home.path}/ prefix for file operations: homes are in {home.path.parent} here"
    )


def test_printed_error_without_details_is_one_line() -> None:
    assert as_text(failed(CallError(Code.E_CANCELLED, "stopped"))) == "Error: stopped [E_CANCELLED]"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1KB"),
        (870_400, "850KB"),
        (2**20 - 1, "1MB"),
        (2_254_857_830, "2.1GB"),
        (2**50, "1048576GB"),
    ],
)
def test_sizes_are_formatted_for_people(size: int, text: str) -> None:
    assert human_size(size) == text


def test_file_is_addressed_by_its_id() -> None:
    file = ArtifactFile(id="art_0123456789ab", name="a", mime="x/y", size=1, sha256="0")

    assert file.uri == "artifact://art_0123456789ab"


@pytest.mark.parametrize(
    ("sizes", "shown"),
    [
        ((480_000,), ["image"]),
        ((480_000, 480_000), ["image", "resource_link"]),
        ((760_000,), ["resource_link"]),
        ((760_000, 480_000, 90_000), ["resource_link", "image", "image"]),
    ],
)
def test_pictures_that_fit_stay_and_others_are_explained(
    sizes: tuple[int, ...], shown: list[str], home: FakeHome, shelf: Shelf
) -> None:
    blocks = [
        {"type": "image", "data": base64.b64encode(bytes([n]) * size).decode(), "mimeType": "image/png"}
        for n, size in enumerate(sizes)
    ]

    message = rendered({"content": [text("page"), *blocks]}, home, shelf)

    found = [block for block in message["content"] if block["type"] != "text"]
    assert [block["type"] for block in found] == shown
    assert len(json.dumps(message)) <= MESSAGE_MAX_BYTES
    assert all(
        "too large for this message" in block["description"]
        for block in found
        if block["type"] == "resource_link"
    )


def test_pictures_above_the_longest_message_become_links(home: FakeHome, shelf: Shelf) -> None:
    block = {"type": "image", "data": base64.b64encode(b"p" * 100_000).decode(), "mimeType": "image/png"}

    within, above = (
        rendered({"content": [text("page"), block]}, home, shelf, max_bytes=most)["content"]
        for most in (200_000, 100_000)
    )

    assert [each["type"] for each in within] == ["text", "image"]
    assert [each["type"] for each in above] == ["text", "resource_link"]
    assert "at most 100000 bytes" in above[1]["description"]
