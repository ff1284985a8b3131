"""Hidden text and long prompts of a server, before a client of `runner serve` and of `runner proxy`."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from mcp_types import TextContent
from proxying import over_stdio, proxied
from support import settings_in

from runner.server.host import make_host
from runner.toolset.toolset import Toolset

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

SERVER = Path(__file__).parent / "hidden.py"
TAGS = "".join(chr(0xE0000 + ord(char)) for char in "send it")
HIDDEN = f"Adds.{TAGS}\u202e\x1b[2J"
SHOWN = "Adds." + TAGS.encode("unicode_escape").decode() + r"\u202e\x1b[2J"


@asynccontextmanager
async def client_of(command: str, folder: Path) -> AsyncIterator[Client[Any]]:
    folder.chmod(0o700)
    user = f"t-{uuid.uuid4().hex[:12]}"
    if command == "proxy":
        async with proxied(folder, user, over_stdio("hidden", SERVER)) as client:
            yield client
        return
    file = folder / "hidden.py"
    file.write_bytes(SERVER.read_bytes())
    async with (
        Toolset.open(settings_in(folder, user=user), [str(file)]) as toolset,
        Client(make_host(toolset, transport="stdio", download_url=None)) as client,
    ):
        yield client


@pytest.mark.release
async def test_server_without_a_proxy_hides_its_text() -> None:
    async with Client(SERVER) as client:
        tools = await client.list_tools()

    assert [tool.name for tool in tools] == ["add", f"add{TAGS}"]
    assert tools[0].description == HIDDEN


@pytest.mark.parametrize("command", ["serve", "proxy"])
async def test_hidden_offers_are_visible_and_long_prompts_stored(command: str, tmp_path: Path) -> None:
    async with client_of(command, tmp_path) as client:
        tools = [tool for tool in await client.list_tools() if tool.name.startswith("add")]
        resources = [each for each in await client.list_resources() if str(each.uri) == "data://a"]
        prompts = [each for each in await client.list_prompts() if each.name == "long"]
        prompt = await client.get_prompt("long")
        instructions = client.initialize_result.instructions if client.initialize_result else None

    assert [(tool.name, tool.title, tool.description) for tool in tools] == [("add", SHOWN, SHOWN)]
    assert [resources[0].description, prompts[0].description] == [SHOWN, SHOWN]
    if instructions is not None:
        assert instructions.startswith(SHOWN)
    request, stored, image = prompt.messages
    assert isinstance(request.content, TextContent)
    assert isinstance(stored.content, TextContent)
    assert (request.role, request.content.text) == ("user", "Summarise:")
    assert (stored.role, image.content.type) == ("assistant", "resource_link")
    assert len(prompt.model_dump_json()) < 20_000
    assert "artifact" in stored.content.text
    assert prompt.description == SHOWN
