"""The user's files before a model behind the proxy: in instructions, and in descriptions of tools."""

from collections.abc import Iterator

import pytest
from contracting import Front, client_of, command, front_of
from eras import NEWEST, SESSION
from fastmcp import Client

pytestmark = [
    pytest.mark.release,
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

OPENING = "[SYSTEM: Available files in current session:"


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    with front_of(*command(), settings='extras = "descriptions"\n') as running:
        yield running


@pytest.mark.parametrize("version", [SESSION, NEWEST])
async def test_proxied_file_tools_list_available_files_others_do_not(front: Front, version: str) -> None:
    await front.put("sales.csv", b"a,b\n1,2\n")

    async with client_of(front, version) as client:
        descriptions = {tool.name: tool.description or "" for tool in await client.list_tools()}
        block = (await client.read_resource("runner://files"))[0].text

    assert block.startswith(f"{OPENING}\n- sales.csv (uploaded ")
    assert descriptions["take"].endswith(block)
    assert [name for name, description in descriptions.items() if OPENING in description] == [
        "take",
        "take_many",
        "take_links",
        "ask",
    ]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_proxy_instructions_list_files(front: Front, mode: str) -> None:
    await front.put("sales.csv", b"a,b\n1,2\n")

    async with Client(front.url, mode=mode) as client:
        instructions = client.instructions

    assert "- sales.csv (uploaded " in (instructions or "")
