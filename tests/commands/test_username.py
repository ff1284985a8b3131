"""The parameter that the server fills in: what clients see of it, and what tools get."""

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
from typing import Annotated
from fastmcp import FastMCP
from pydantic import Field

mcp = FastMCP("names")

@mcp.tool
def who(username: str, word: str = "") -> dict:
    return {"username": username, "word": word}

@mcp.tool
def perhaps(username: Annotated[str | None, Field(description="Who")] = None) -> dict:
    return {"username": username}

@mcp.tool
def other(_user: str, username: str) -> dict:
    return {"_user": _user, "username": username}
"""


async def call_all(folder: Path, user: str, calls: dict[str, dict[str, Any]], **more: Any) -> tuple[Any, Any]:
    file = folder / "names.py"
    file.write_text(SOURCE)
    settings = settings_in(folder, user=user, **more)
    async with (
        Toolset.open(settings, [str(file)], user=User(user)) as toolset,
        Client(make_host(toolset, transport="stdio", download_url=None)) as client,
    ):
        tools = {tool.name: tool.input_schema for tool in await client.list_tools()}
        return tools, {
            name: (await client.call_tool(name, arguments)).data for name, arguments in calls.items()
        }


async def test_username_hidden_from_clients_and_passed_to_tool(folder: Path, user: str) -> None:
    tools, replies = await call_all(
        folder, user, {"who": {"word": "x"}, "perhaps": {}, "other": {"_user": "theirs"}}
    )

    assert list(tools["who"]["properties"]) == ["word"]
    assert "required" not in tools["who"]
    assert "username" not in tools["perhaps"]["properties"]
    assert tools["other"]["required"] == ["_user"]
    assert replies["who"] == {"username": user, "word": "x"}
    assert replies["perhaps"] == {"username": user}
    assert replies["other"] == {"_user": "theirs", "username": user}


async def test_username_sent_by_caller_is_overwritten(folder: Path, user: str) -> None:
    _, replies = await call_all(folder, user, {"who": {"username": "somebody else"}})

    assert replies["who"] == {"username": user, "word": ""}


async def test_username_parameter_name_is_configurable(folder: Path, user: str) -> None:
    tools, replies = await call_all(
        folder, user, {"other": {"username": "any word"}}, username_parameter="_user"
    )

    assert tools["other"]["required"] == ["username"]
    assert replies["other"] == {"_user": user, "username": "any word"}
