"""Extras that the runner offers beside a tool file; the file's own take precedence."""

import json
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fastmcp import Client
from mcp import MCPError
from support import settings_in

from runner.contract.models import contract_schema
from runner.server.extras import Extras
from runner.server.host import make_host
from runner.toolset.call_services import CallServices
from runner.toolset.toolset import Toolset
from runner.users.identity import User

pytestmark = pytest.mark.anyio

PLAIN = """
from fastmcp import FastMCP
mcp = FastMCP("plain")

@mcp.tool
def one() -> int:
    return 1

@mcp.resource("data://own")
def own() -> str:
    return "own"
"""

GREEDY = """
from fastmcp import FastMCP
mcp = FastMCP("greedy")

@mcp.resource("runner://contract/2.1")
def contract() -> str:
    return "the file's own"
"""

FAILING = """
from fastmcp import FastMCP
mcp = FastMCP("failing")

@mcp.resource("runner://contract/2.1")
def contract() -> str:
    raise OSError("broken")
"""


@pytest.fixture
def serving(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager["Client[Any]"]]:
    """Serve a tool file, given as text, to a client in this process."""

    @asynccontextmanager
    async def serve(source: str, mode: str = "auto", **settings: Any) -> AsyncIterator["Client[Any]"]:
        tmp_path.chmod(0o700)
        file = tmp_path / "tools.py"
        file.write_text(source)
        effective = settings_in(tmp_path, user=f"t-{uuid.uuid4().hex[:12]}", **settings)
        async with (
            Toolset.open(effective, [str(file)]) as toolset,
            Client(make_host(toolset, transport="stdio", download_url=None), mode=mode) as client,
        ):
            yield client

    return serve


async def says(service: CallServices, user: User) -> str:
    return f"for {user.name}"


OURS = Extras(
    listed={
        "resources": [{"uri": f"runner://{x}", "name": x, "mimeType": "text/plain"} for x in "ab"],
        "resourceTemplates": [{"uriTemplate": "runner://{x}", "name": "x", "description": "X"}],
        "prompts": [{"name": "p", "description": "P", "arguments": []}],
    },
    texts=dict.fromkeys("abp", says),
)


# lists


def test_our_extras_follow_file_items_on_last_page_only() -> None:
    last = {"resources": [{"uri": "data://own"}], "ttlMs": 0}
    earlier = {"resources": [{"uri": "data://own"}], "nextCursor": "2"}

    merged = OURS.merged("resources/list", last)

    assert [item["uri"] for item in merged["resources"]] == ["data://own", "runner://a", "runner://b"]
    assert merged["ttlMs"] == 0
    assert OURS.merged("resources/list", earlier) == earlier


def test_file_offer_under_our_name_hides_ours() -> None:
    own = {"uri": "runner://a", "name": "the file's"}

    merged = OURS.merged("resources/list", {"resources": [own]})

    assert [(item["uri"], item["name"]) for item in merged["resources"]] == [
        ("runner://a", "the file's"),
        ("runner://b", "b"),
    ]


def test_templates_and_prompts_listed_and_tools_never() -> None:
    templates = OURS.merged("resources/templates/list", {"resourceTemplates": []})["resourceTemplates"]
    prompts = OURS.merged("prompts/list", {"prompts": []})["prompts"]

    assert templates == [{"uriTemplate": "runner://{x}", "name": "x", "description": "X"}]
    assert prompts == [{"name": "p", "description": "P", "arguments": []}]
    assert OURS.merged("tools/list", {"tools": []}) == {"tools": []}


def test_non_list_answer_left_alone() -> None:
    assert OURS.merged("resources/list", {"resources": "x"}) == {"resources": "x"}


async def test_extras_read_with_identity_of_caller() -> None:
    toolset: Any = None
    user = User("alice")

    read = await OURS.answer("resources/read", {"uri": "runner://b"}, toolset, user)
    prompt = await OURS.answer("prompts/get", {"name": "p"}, toolset, user)

    assert read == {"contents": [{"uri": "runner://b", "mimeType": "text/plain", "text": "for alice"}]}
    assert prompt == {
        "description": "P",
        "messages": [{"role": "user", "content": {"type": "text", "text": "for alice"}}],
    }
    assert await OURS.answer("resources/read", {"uri": "runner://c"}, toolset, user) is None
    assert await OURS.answer("prompts/get", {"name": "q"}, toolset, user) is None
    assert await OURS.answer("tools/call", {"name": "p"}, toolset, user) is None


# served


@pytest.mark.kernel
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_contract_listed_and_read_beside_file(serving: Any, mode: str) -> None:
    async with serving(PLAIN, mode) as client:
        resources = [str(item.uri) for item in await client.list_resources()]
        templates = [item.uri_template for item in await client.list_resource_templates()]
        tools = [tool.name for tool in await client.list_tools()]
        contents = await client.read_resource("runner://contract/2.1")
        own = await client.read_resource("data://own")

    assert resources[0] == "data://own"
    assert "runner://contract/2.1" in resources[1:]
    assert "artifact://{id}{?offset,length}" in templates
    assert tools == ["one", "artifact_info", "artifact_read", "artifact_search"]
    assert own[0].text == "own"
    assert (contents[0].mime_type, json.loads(contents[0].text)) == (
        "application/schema+json",
        contract_schema(),
    )
    jsonschema.Draft202012Validator.check_schema(json.loads(contents[0].text))


@pytest.mark.kernel
async def test_files_own_resource_of_our_name_listed_once_and_read(serving: Any) -> None:
    async with serving(GREEDY) as client:
        listed = [str(item.uri) for item in await client.list_resources()]
        contents = await client.read_resource("runner://contract/2.1")

    assert listed.count("runner://contract/2.1") == 1
    assert contents[0].text == "the file's own"


@pytest.mark.kernel
async def test_files_own_failing_resource_not_replaced(serving: Any) -> None:
    async with serving(FAILING) as client:
        with pytest.raises(MCPError, match="broken"):
            await client.read_resource("runner://contract/2.1")


@pytest.mark.kernel
async def test_switch_leaves_only_offers_of_file(serving: Any) -> None:
    async with serving(PLAIN, extras="off") as client:
        offered = [
            [str(item.uri) for item in await client.list_resources()],
            await client.list_resource_templates(),
            await client.list_prompts(),
        ]
        with pytest.raises(MCPError, match="not found"):
            await client.read_resource("runner://contract/2.1")

    assert offered == [["data://own"], [], []]


# what users' interfaces hear

MAKING = """
from fastmcp import FastMCP
mcp = FastMCP("making")

@mcp.tool
def make() -> dict:
    report = {"name": "../r.html", "b64": "PGgxPg==", "mime": "text/html"}
    return {"results": 1, "artifacts": [report], "display": {"notification": "Saved"}}
"""


@pytest.mark.kernel
async def test_interface_events_of_result_reach_only_its_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    file = tmp_path / "tools.py"
    file.write_text(MAKING)
    user = f"t-{uuid.uuid4().hex[:12]}"
    async with (
        Toolset.open(settings_in(tmp_path, user=user), [str(file)]) as toolset,
        Client(make_host(toolset, transport="stdio", download_url=None)) as client,
    ):
        with toolset.events.subscribe(user=user) as ours, toolset.events.subscribe(user="somebody") as others:
            await client.call_tool("make", {})
        events = [event async for event in ours if event["type"] != "tool_start"]
        overheard = [event async for event in others]

    kinds = [event["type"] for event in events]
    assert kinds == ["artifact_stored", "files_update", "canvas_files", "notification"]
    assert [file["name"] for file in events[1]["files"]] == ["r.html"]
    assert events[1]["files"][0]["uri"].startswith("artifact://art_")
    assert "PGgxPg==" not in json.dumps(events)
    assert overheard == []
