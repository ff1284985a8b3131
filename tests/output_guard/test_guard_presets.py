"""Each preset on outputs of its server: recorded by `scripts/record_outputs`, or published by its authors."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from guard_samples import FORMATS, PDF, b64
from guard_shelf import SCOPE, Shelf

from runner.output_guard.artifact_field import preset_names
from runner.output_guard.config import from_mapping
from runner.output_guard.message import guard_message
from runner.output_guard.pipeline import Guarded
from runner.output_guard.storing import Keeper

RECORDED = Path(__file__).parent / "recorded"
FILES = sorted(path.stem for path in RECORDED.glob("*.json"))
SERVERS = {"filesystem", "memory", "fetch", "puppeteer", "playwright"}
# How a host may name the tool `t` of the server `s`.
PREFIXES: dict[str, Callable[[str], str]] = {
    "none": lambda tool: tool,
    "a mount": lambda tool: f"box_{tool}",
    "a host": lambda tool: f"mcp__box__{tool}",
    "dots": lambda tool: f"box.{tool}",
    "a dash": lambda tool: f"my-box-{tool}",
    "a path": lambda tool: f"box/{tool}",
}


def recorded(name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    return read


def sent(result: dict[str, Any], tool: str, preset: str, shelf: Shelf | None) -> Guarded:
    config = from_mapping({"tool_fields": {"$preset": preset}})

    async def run() -> Guarded:
        return await guard_message(result, Keeper(config=config, store=shelf, scope=SCOPE, tool=tool))

    return anyio.run(run)


def text_of(result: dict[str, Any]) -> str:
    return json.dumps([result["content"], result.get("structuredContent")], ensure_ascii=False)


def test_each_preset_has_a_server_with_recorded_outputs() -> None:
    origins = {name: recorded(name)["origin"] for name in FILES}

    assert {"tableau", "github", *SERVERS} == set(preset_names())
    assert {name.partition("-")[0] for name in FILES} == SERVERS
    assert all(re.fullmatch(r"(@[\w-]+/)?[\w-]+@[\d.]+", origin["package"]) for origin in origins.values())
    assert all(origin["recorded_by"] == "scripts/record_outputs" for origin in origins.values())
    assert all((RECORDED / f"{name}.json").stat().st_size < 150_000 for name in FILES)


# The recorded output, what is kept of it, and how the model is told.
TAKEN_OUT = {
    "filesystem-image": ("image/png", "Read a media file (image/png, "),
    "filesystem-sound": ("audio/wav", "Read a media file (audio/wav, "),
    "filesystem-document": ("application/pdf", "Read a file (application/pdf, "),
    "filesystem-text": ("text/plain", "Read a text file ("),
    "filesystem-several": ("text/plain", "Read several text files ("),
    "memory-graph": ("application/json", "Entities of the graph ("),
    "fetch-long": ("text/plain", "Fetched a page ("),
    "puppeteer-screenshot": ("image/png", "Screenshot (image/png, "),
    "puppeteer-evaluated": ("text/plain", "Result of a script ("),
    "playwright-screenshot": ("image/png", "Screenshot (image/png, "),
    "playwright-evaluated": ("text/plain", "Result of a script ("),
}


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("name", TAKEN_OUT)
def test_recorded_file_is_extracted_for_any_tool_prefix(shelf: Shelf, name: str, prefix: str) -> None:
    mime, summary = TAKEN_OUT[name]
    was = recorded(name)

    done = sent(was["result"], PREFIXES[prefix](was["tool"]), name.partition("-")[0], shelf)

    text = text_of(done.value)
    assert mime in {record.mime for record in shelf.records}
    assert summary in text
    assert f"Artifact: {shelf.records[0].id}" in text
    assert len(text) < len(text_of(was["result"])) / 2
    assert done.warnings == ()


# A screenshot as a data: URL stands among texts, where no field can tell it; detection does.
FOUND = {"puppeteer-encoded": "image/png", "fetch-raw": "image/png"}


@pytest.mark.parametrize("name", FOUND)
def test_file_outside_named_fields_is_detected(shelf: Shelf, name: str) -> None:
    was = recorded(name)

    done = sent(was["result"], was["tool"], name.partition("-")[0], shelf)

    assert [record.mime for record in shelf.records] == [FOUND[name]]
    assert shelf.records[0].id in text_of(done.value)


@pytest.mark.parametrize("name", sorted({*FILES} - {*TAKEN_OUT} - {*FOUND}))
def test_short_recorded_output_is_unchanged(shelf: Shelf, name: str) -> None:
    was = recorded(name)

    done = sent(was["result"], was["tool"], name.partition("-")[0], shelf)

    assert done.value == was["result"]
    assert (shelf.records, done.warnings) == ([], ())


def test_bytes_are_stored_as_the_server_read_them(shelf: Shelf) -> None:
    was = recorded("filesystem-document")

    sent(was["result"], was["tool"], "filesystem", shelf)

    assert {content[:5] for content in shelf.contents} == {b"%PDF-"}
    assert {content[-6:] for content in shelf.contents} == {b"%%EOF\n"}


def test_a_block_whose_bytes_a_field_named_becomes_a_link(shelf: Shelf) -> None:
    was = recorded("playwright-screenshot")

    blocks = sent(was["result"], was["tool"], "playwright", shelf).value["content"]

    assert [block["type"] for block in blocks] == ["text", "resource_link"]
    assert blocks[1]["uri"] == f"artifact://{shelf.records[0].id}"
    assert blocks[1]["mimeType"] == "image/png"


def test_a_graph_that_is_small_stays(shelf: Shelf) -> None:
    was = recorded("memory-graph")
    graph = {key: items[:3] for key, items in was["result"]["structuredContent"].items()}
    small = {"content": [{"type": "text", "text": json.dumps(graph)}], "structuredContent": graph}

    assert sent(small, "read_graph", "memory", shelf).value == small


# Not recorded, for it needs an account: the shapes that github/github-mcp-server publishes in its source.
URI = "repo://octocat/hello/sha/7fd1a60/contents/report.pdf"
PUBLISHED: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "a binary file": (
        "get_file_contents",
        {
            "content": [
                {"type": "text", "text": "successfully downloaded binary file (SHA: 7fd1a60)"},
                {
                    "type": "resource",
                    "resource": {"uri": URI, "mimeType": "application/pdf", "blob": b64(PDF)},
                },
            ]
        },
        "application/pdf",
        "Downloaded a file (application/pdf, ",
    ),
    "a text file": (
        "get_file_contents",
        {
            "content": [
                {"type": "text", "text": "successfully downloaded text file (SHA: 7fd1a60)"},
                {
                    "type": "resource",
                    "resource": {"uri": URI, "mimeType": "text/plain", "text": "line of text\n" * 2000},
                },
            ]
        },
        "text/plain",
        "Downloaded a text file (",
    ),
    "the log of a job": (
        "get_job_logs",
        {
            "content": [
                {
                    "type": "text",
                    "text": json.dumps(
                        {
                            "job_id": 123,
                            "logs_content": "2023-01-01T10:00:00.000Z Starting\n" * 1000,
                            "message": "Job logs content retrieved successfully",
                            "original_length": 1000,
                        }
                    ),
                }
            ]
        },
        "text/plain",
        "Log of job 123 (",
    ),
    "a search": (
        "search_code",
        {
            "content": [
                {
                    "type": "text",
                    "text": json.dumps(
                        {
                            "total_count": 90,
                            "incomplete_results": False,
                            "items": [
                                {"name": f"file{n}.go", "path": f"pkg/file{n}.go", "sha": f"{n:040x}"}
                                for n in range(200)
                            ],
                        }
                    ),
                }
            ]
        },
        "application/json",
        "Found 90 (",
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_shapes_of_github_are_known(shelf: Shelf, name: str) -> None:
    tool, result, mime, summary = PUBLISHED[name]

    done = sent(result, f"github_{tool}", "github", shelf)

    assert [record.mime for record in shelf.records] == [mime]
    assert summary in text_of(done.value)
    assert done.warnings == ()


def test_preset_without_store_truncates_with_a_note() -> None:
    was = recorded("filesystem-image")

    done = sent(was["result"], was["tool"], "filesystem", None)

    assert "truncated" in text_of(done.value)
    assert was["result"]["content"][0]["data"] not in text_of(done.value)
    assert done.warnings


def test_tool_with_only_a_similar_name_gets_no_preset(shelf: Shelf) -> None:
    value = {"content": [{"type": "image", "data": b64(FORMATS["png"][1]()), "mimeType": "image/png"}]}

    text = text_of(sent(value, "bulkread_media_file", "filesystem", shelf).value)

    assert "Read a media file" not in text
    assert shelf.records
