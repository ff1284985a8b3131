"""Tools of other servers behind `runner proxy`: who calls, and what becomes of their results."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contracting import (
    MARKS,
    VERSIONS,
    Front,
    client_of,
    front_of,
    read_by_model,
    value_of,
)
from upstream import ENCODED, TOKEN

pytestmark = [*MARKS, pytest.mark.release]


@pytest.fixture(scope="module")
def front(address: str) -> Iterator[Front]:
    """Full contract, decided by the arguments of each tool."""
    with front_of(address, settings='iframe_origins = ["https://pages.example"]') as front:
        yield front


@pytest.fixture(scope="module")
def full(address: str) -> Iterator[Front]:
    with front_of("--contract", "full", address) as front:
        yield front


@pytest.fixture(scope="module")
def guarded(address: str) -> Iterator[Front]:
    with front_of("--contract", "guard", address) as front:
        yield front


@VERSIONS
async def test_username_tool_with_version_2_result_served_as_our_own(front: Front, version: str) -> None:
    async with client_of(front, version) as client:
        called = await client.call_tool_mcp("whoami", {})

        reference = called.structured_content["artifacts"][0]
        fetched = await client.read_resource(reference["uri"])
    assert called.structured_content["results"] == {"username": front.user}
    assert fetched[0].blob == ENCODED
    assert called.meta["toolcell/display"]["order"] == ["hello.pdf"]
    assert "hello.pdf" in await front.files()


@VERSIONS
async def test_username_of_client_never_reaches_server(front: Front, guarded: Front, version: str) -> None:
    async with client_of(guarded, version) as client:
        control = await value_of(client, "whoami", username="mallory")
    async with client_of(front, version) as client:
        value = await value_of(client, "whoami", username="mallory")

    assert control["results"] == {"username": "mallory"}
    assert value["results"] == {"username": front.user}


@VERSIONS
async def test_username_dropped_for_tool_that_does_not_take_it(front: Front, version: str) -> None:
    async with client_of(front, version) as client:
        called = await client.call_tool_mcp("plain", {"text": "x", "username": "mallory"})

    # Its author's server refuses what it does not know, and got none of it.
    assert called.structured_content == {"result": "x"}
    assert not called.is_error


@VERSIONS
async def test_username_hidden_from_clients_in_schemas(front: Front, guarded: Front, version: str) -> None:
    async def arguments(front: Front) -> list[str]:
        async with client_of(front, version) as client:
            (tool,) = [tool for tool in await client.list_tools() if tool.name == "take_many"]
            return sorted(tool.input_schema["properties"])

    assert await arguments(guarded) == ["filenames", "username"]
    assert await arguments(front) == ["filenames"]


SHAPES: dict[str, tuple[Any, list[str]]] = {
    "first_version": ("one", ["a.pdf", "b.pdf"]),
    "whoami": (None, ["hello.pdf"]),
    "newest_version": ({"n": 2}, ["c.pdf"]),
    "content_blocks": ("two files", ["image_1.png", "d.pdf"]),
    "envelope_as_text": ("in a text", ["e.pdf"]),
}


@VERSIONS
@pytest.mark.parametrize("tool", sorted(SHAPES))
async def test_result_of_any_shape_is_contract_without_base64_or_token(
    front: Front, tool: str, version: str
) -> None:
    """Source: S0-19 and S2-4."""
    results, names = SHAPES[tool]
    async with client_of(front, version) as client:
        called = await client.call_tool_mcp(tool, {})

    value = called.structured_content or called.meta["toolcell/result"]
    read = read_by_model(called)
    assert value["results"] == (results or {"username": front.user})
    assert [item["name"] for item in value["artifacts"]] == names
    assert all(item["uri"].startswith("artifact://") for item in value["artifacts"])
    assert set(names) <= await front.files()
    assert ENCODED[:100] not in read
    assert TOKEN not in read
    assert called.meta["toolcell/display"]["open"] is True


@VERSIONS
async def test_guard_makes_observations_and_stores_no_user_files(guarded: Front, version: str) -> None:
    async with client_of(guarded, version) as client:
        for tool in SHAPES:
            called = await client.call_tool_mcp(tool, {"username": guarded.user})

            assert ENCODED[:100] not in read_by_model(called)
            assert "toolcell/display" not in (called.meta or {})
    assert await guarded.files() == set()


@VERSIONS
async def test_page_token_is_for_its_host_alone(front: Front, version: str) -> None:
    async with client_of(front, version) as client:
        called = await client.call_tool_mcp("newest_version", {})

    assert called.meta["toolcell/display"]["iframe"]["token"] == TOKEN
    assert called.structured_content["canvas"] == {"type": "iframe", "url": "https://pages.example/x"}


@VERSIONS
async def test_tool_exception_reported_in_authors_words(front: Front, version: str) -> None:
    async with client_of(front, version) as client:
        called = await client.call_tool_mcp("fails", {})

    assert called.is_error
    assert called.content[0].text.endswith(f"no rows for {front.user}")
    assert called.meta["toolcell/result"]["meta_data"]["is_error"] is True


@VERSIONS
async def test_result_with_files_applies_contract_unless_guarded(
    front: Front, full: Front, guarded: Front, version: str
) -> None:
    async def structured_content(front: Front) -> Any:
        async with client_of(front, version) as client:
            return (await client.call_tool_mcp("lone_envelope", {})).structured_content

    left = {"results": "lone", "artifacts": [{"name": "small.txt", "b64": "aGVsbG8=", "mime": "text/plain"}]}
    assert await structured_content(guarded) == left
    for taken in (await structured_content(front), await structured_content(full)):
        assert taken["artifacts"][0]["uri"].startswith("artifact://")
        assert "b64" not in taken["artifacts"][0]
    assert "small.txt" in await full.files()


@VERSIONS
async def test_server_configuration_selects_its_contract(address: str, version: str, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    servers = {
        "ours": {"url": address, "contract": "full"},
        "theirs": {"url": address, "contract": "guard"},
    }
    file.write_text(json.dumps({"mcpServers": servers}))
    with front_of("--contract", "guard", str(file)) as front:
        async with client_of(front, version) as client:
            ours = await value_of(client, "ours_whoami", username="mallory")
            theirs = await value_of(client, "theirs_whoami", username="mallory")

    assert ours["results"] == {"username": front.user}
    assert theirs["results"] == {"username": "mallory"}


@VERSIONS
async def test_contract_tool_progress_and_messages_reach_client(front: Front, version: str) -> None:
    reports: list[Any] = []

    async def progress(*report: Any) -> None:
        reports.append(report)

    async with client_of(front, version) as client:
        called = await client.call_tool("steps", {}, progress_handler=progress)

    assert [report[:2] for report in reports] == [(0, 3), (1, 3), (2, 3)]
    assert called.structured_content["artifacts"][0]["name"] == "steps.pdf"


@VERSIONS
async def test_user_files_offered_as_for_our_own_tools(front: Front, guarded: Front, version: str) -> None:
    await front.put("for the list.txt", b"x")
    async with client_of(guarded, version) as client:
        control = {str(item.uri) for item in await client.list_resources()}
    async with client_of(front, version) as client:
        offered = {str(item.uri) for item in await client.list_resources()}
        listed = (await client.read_resource("runner://files"))[0].text
        prompt = (await client.get_prompt("available_files")).messages[0].content.text

    assert not {uri for uri in control if uri.startswith("runner://")}
    assert {"runner://files", "runner://contract/2.1", "note://short"} <= offered
    assert "for the list.txt" in listed
    assert "for the list.txt" in prompt
