"""Session state where tool files are served together: FastMCP mounts them, each as a server of its own."""

from pathlib import Path

import pytest
from somebody import somebody
from support import call, settings_in

from runner.toolset.toolset import Toolset

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

FILE = """
from fastmcp import Context, FastMCP

mcp = FastMCP("NAME")


@mcp.tool(name="NAME_remember")
async def remember(ctx: Context, value: str | None = None) -> str:
    if value is not None:
        await ctx.set_state("value", value)
    return str(await ctx.get_state("value"))
"""


async def test_files_each_keep_state_between_calls(tmp_path: Path) -> None:
    names = ("first", "second")
    for name in names:
        (tmp_path / f"{name}.py").write_text(FILE.replace("NAME", name))
    targets = [str(tmp_path / f"{name}.py") for name in names]

    with somebody() as user:
        async with Toolset.open(settings_in(tmp_path), targets) as toolset:
            tools = sorted(toolset.catalog.tools)
            for tool in tools:
                await call(toolset, user, tool, value=tool)
            results = [(await call(toolset, user, tool)).processed.value["results"] for tool in tools]

    assert len(tools) == 2
    assert results == tools
