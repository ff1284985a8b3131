"""Tools and parameters that a file hides: what is said of them names them once, as with any unknown name."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from support import settings_in

from runner.contract.error_messages import tool_not_found
from runner.server.host import make_host
from runner.toolset.toolset import Toolset
from runner.users.identity import User

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

SOURCE = """
from fastmcp import FastMCP
from fastmcp.server.middleware import Middleware
from fastmcp.tools import Tool
from fastmcp.tools.tool_transform import ArgTransform

class Unlisted(Middleware):
    async def on_list_tools(self, context, call_next):
        return [tool for tool in await call_next(context) if tool.name != "nowhen"]

mcp = FastMCP("hides", middleware=[Unlisted()])

@mcp.tool
def nowhen() -> str:
    return "called by its name only"

@mcp.tool(tags={"hidden"})
def ghost() -> str:
    return "seen"

@mcp.tool
def adds(number: int, secret: int = 1) -> int:
    return number + secret

hides = {"secret": ArgTransform(hide=True, default=1)}
mcp.add_tool(Tool.from_tool(adds, name="adds_one", transform_args=hides))
mcp.disable(tags={"hidden"})
"""
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("ghost", {}),
    ("nowhere", {}),
    ("adds_one", {"number": 1, "secret": 5}),
    ("adds_one", {"number": "x"}),
    ("adds_one", {}),
]


async def listing(client: Client[Any]) -> list[tuple[str, bool, str]]:
    found = []
    async with client:
        for tool, arguments in CALLS:
            answer = await client.call_tool_mcp(tool, arguments)
            found.append((tool, bool(answer.is_error), answer.content[0].text))  # type: ignore[union-attr]
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "hides.py"
    path.write_text(SOURCE)
    return path


def test_hidden_names_are_quoted_once() -> None:
    names = ("ghost", "it's", 'say "x"', "a\\b", "a\x1bb", "a\u202eb")

    messages = [tool_not_found(name, []).message for name in names]

    assert messages == [f"There is no tool named {name!r}" for name in names]


def test_unknown_tool_names_no_tools_only_if_that_is_known() -> None:
    none, unknown = tool_not_found("a", []), tool_not_found("a", None)

    assert none.details["suggestion"] == "The server has no tools"
    assert unknown.details["suggestion"] == "Request the list of tools again; it may have changed"


async def test_hidden_names_reported_once_as_not_found(file: Path, folder: Path, user: str) -> None:
    plain = await listing(Client(runpy.run_path(str(file))["mcp"]))
    async with Toolset.open(settings_in(folder, user=user), [str(file)], user=User(user)) as toolset:
        ours = await listing(Client(make_host(toolset, transport="stdio", download_url=None)))

    assert [fails for _, fails, _ in ours] == [fails for _, fails, _ in plain] == [True] * len(CALLS)
    texts = [text for _, _, text in ours]
    ghost, nowhere = (json.loads(text)["results"]["error"] for text in texts[:2])
    assert (ghost, nowhere) == ("There is no tool named 'ghost'", "There is no tool named 'nowhere'")
    # Hidden tools are not among those that could have been meant.
    suggestion = json.loads(texts[1])["meta_data"]["details"]["suggestion"]
    assert suggestion == "The tools are 'adds', 'adds_one'"
    # A hidden parameter: in FastMCP's words, of the parameter once.
    assert texts[2] == plain[2][2]
    assert texts[2].count("secret") == 1
    error = json.loads(texts[3])["results"]["error"]
    assert error.startswith("number: Input should be a valid integer")
    assert (error.count("number"), error.count("'")) == (1, 0)
    assert texts[4] == plain[4][2]
    assert texts[4].count("number") == 1
