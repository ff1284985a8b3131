"""The tools with which a model reads the resources that `runner serve` offers."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from support import settings_in

from runner.server.host import make_host
from runner.toolset.toolset import Toolset
from runner.users.identity import User

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

SOURCE = """
from fastmcp import FastMCP
mcp = FastMCP("my notes!")

@mcp.resource("note://short", mime_type="text/plain")
def short() -> str:
    return "a note"

@mcp.resource("note://long", mime_type="text/plain")
def long() -> str:
    return "w" * 10_001

@mcp.resource("note://picture", mime_type="image/png")
def picture() -> bytes:
    return b"\\x89PNG\\r\\n\\x1a\\n" + bytes(2000)

@mcp.resource("note://{day}/entry")
def entry(day: str) -> str:
    return f"on {day}"

@mcp.tool
def hello() -> str:
    return "hello"
"""

OURS = ["my_notes.resources_list", "my_notes.resources_read", "my_notes.resources_templates_list"]
ERAS = pytest.mark.parametrize("mode", ["auto", "legacy"])


@pytest.fixture
def served(folder: Path, user: str) -> Callable[..., Any]:
    @asynccontextmanager
    async def serve(mode: str, source: str = SOURCE, **settings: Any) -> AsyncIterator[Any]:
        file = folder / "tools.py"
        file.write_text(source)
        effective = settings_in(folder, user=user, **settings)
        async with (
            Toolset.open(effective, [str(file)], user=User(user)) as toolset,
            Client(make_host(toolset, transport="stdio", download_url=None), mode=mode) as client,
        ):
            yield client

    return serve


async def names(client: Any) -> list[str]:
    """Return the tools before the three that read back what was kept."""
    listed = [tool.name for tool in await client.list_tools()]
    assert listed[-3:] == ["artifact_info", "artifact_read", "artifact_search"]
    return listed[:-3]


@ERAS
async def test_model_reads_resources_of_file_and_ours(mode: str, served: Any) -> None:
    """Source: S4-36 and S4-38."""
    async with served(mode, resource_tools=True) as client:

        async def read(uri: str) -> Any:
            return (await client.call_tool_mcp(OURS[1], {"uri": uri})).structured_content

        before = await names(client)
        listed = (await client.call_tool(OURS[0])).structured_content["resources"]
        templates = (await client.call_tool(OURS[2])).structured_content["resourceTemplates"]
        short, entry, files = [
            await read(uri) for uri in ("note://short", "note://monday/entry", "runner://files")
        ]
        long, picture = [await read(uri) for uri in ("note://long", "note://picture")]
        again = await read(f"artifact://{picture['artifact']['id']}")
        after = await names(client)

    assert before == ["hello", *OURS]
    assert {"note://short", "runner://files"} <= {item["uri"] for item in listed}
    assert {"note://{day}/entry", "artifact://{id}{?offset,length}"} == {
        item["uriTemplate"] for item in templates
    }
    assert (short["text"], entry["text"], files["uri"]) == ("a note", "on monday", "runner://files")
    assert [item["artifact"]["size_bytes"] for item in (long, picture, again)] == [10_001, 2008, 2008]
    assert not any("blob" in item or "text" in item for item in (long, picture, again))
    assert after == before


async def test_unreadable_resource_is_an_explained_error(served: Any) -> None:
    async with served("auto", resource_tools=True) as client:
        missing = await client.call_tool_mcp(OURS[1], {"uri": "note://none"})
        without = await client.call_tool_mcp(OURS[1], {})
        works = await client.call_tool_mcp(OURS[1], {"uri": "note://short"})

    assert (missing.is_error, without.is_error, works.is_error) == (True, True, False)
    assert "note://none could not be read" in missing.content[0].text


@pytest.mark.parametrize(
    "settings", [{}, {"resource_tools": True, "output_guard": {"resources": {"enabled": False}}}]
)
async def test_resource_tools_follow_their_setting(served: Any, settings: dict[str, Any]) -> None:
    async with served("auto", **settings) as client:
        offered = await names(client)
        called = await client.call_tool(OURS[0], raise_on_error=False)

    assert offered == ["hello"]
    assert called.is_error


async def test_tool_of_file_hides_ours_of_same_name(served: Any) -> None:
    own = '\n@mcp.tool(name="my_notes.resources_list")\ndef own() -> str:\n    return "the file\'s own"\n'

    async with served("auto", SOURCE + own, resource_tools=True) as client:
        offered = await names(client)
        called = await client.call_tool(OURS[0])

    assert sorted(offered) == sorted(["hello", *OURS])
    assert called.data == "the file's own"
