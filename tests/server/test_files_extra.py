"""The available-files block as an MCP client gets it."""

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from mcp import MCPError
from support import settings_in

from runner.files.my_files import MyFiles, open_library
from runner.server.host import make_host
from runner.store.protocol import Origin
from runner.toolset.toolset import Toolset
from runner.users.identity import User

pytestmark = pytest.mark.anyio

TOOL_FILE = """
from fastmcp import FastMCP
mcp = FastMCP("plain")

@mcp.tool
def one() -> int:
    return 1
"""
OPENING = "[SYSTEM: Available files in current session:"


@pytest.fixture
def serving(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager["tuple[Client[Any], MyFiles]"]]:
    """Serve a tool file to a client of one user; comes with the files of that user."""

    @asynccontextmanager
    async def serve(**more: Any) -> AsyncIterator["tuple[Client[Any], MyFiles]"]:
        tmp_path.chmod(0o700)
        (tmp_path / "tools.py").write_text(TOOL_FILE)
        user = User(f"t-{uuid.uuid4().hex[:12]}")
        settings = settings_in(tmp_path, user=user.name, **more)
        async with (
            Toolset.open(settings, [str(tmp_path / "tools.py")]) as toolset,
            Client(make_host(toolset, transport="stdio", download_url=None)) as client,
        ):
            yield client, open_library(settings).of(user.name)

    return serve


async def put(files: MyFiles, folder: Path, name: str, content: bytes) -> None:
    path = folder / "content"
    path.write_bytes(content)
    with path.open("rb") as source:
        await files.put(source.fileno(), name=name, origin=Origin.UPLOADED)


async def test_prompt_and_resource_list_callers_files_only(
    serving: Callable[..., Any], tmp_path: Path
) -> None:
    """Source: S1-21 and S1-38."""
    async with serving() as (client, files):
        stranger = files.library.of(f"t-{uuid.uuid4().hex[:12]}")
        await put(files, tmp_path, "a.csv", b"a,b\n1,2\n")
        await put(stranger, tmp_path, "secret.csv", b"a,b\n1,2\n")

        (resource,) = await client.read_resource("runner://files")
        prompt = await client.get_prompt("available_files")

    lines = resource.text.split("\n")
    assert (lines[0], lines[-1], len(lines)) == (OPENING, "End available files]", 3)
    assert lines[1].startswith("- a.csv (uploaded ")
    assert resource.mime_type == "text/plain"
    assert [message.content.text for message in prompt.messages] == [resource.text]


async def test_no_files_no_block_and_prompt_says_so(serving: Callable[..., Any]) -> None:
    async with serving() as (client, _files):
        (resource,) = await client.read_resource("runner://files")
        prompt = await client.get_prompt("available_files")

    assert resource.text == ""
    assert [message.content.text for message in prompt.messages] == [
        "There are no files in the current session."
    ]


async def test_prompt_and_resource_listed_unless_disabled(serving: Callable[..., Any]) -> None:
    async with serving() as (client, _files):
        resources, prompts = await client.list_resources(), await client.list_prompts()
        tools = await client.list_tools()
    async with serving(extras="off") as (client, _files):
        fewer = [*await client.list_resources(), *await client.list_prompts()]
        with pytest.raises(MCPError):
            await client.read_resource("runner://files")

    assert "runner://files" in [str(resource.uri) for resource in resources]
    assert "available_files" in [prompt.name for prompt in prompts]
    assert [tool.name for tool in tools][:1] == ["one"]
    assert fewer == []
