"""A server whose tools may become tasks of MCP."""

import asyncio
from datetime import timedelta

import mcp_types
from fastmcp import Context, FastMCP
from fastmcp.utilities.tasks import TaskConfig

mcp = FastMCP("tasks")
OFTEN = timedelta(milliseconds=50)


@mcp.tool(task=TaskConfig(poll_interval=OFTEN))
async def slow(seconds: float, ctx: Context) -> str:
    """Take a while, and say so once."""
    await ctx.report_progress(1, 2, "half of it")
    await asyncio.sleep(seconds)
    return f"after {seconds}"


@mcp.tool(task=TaskConfig(mode="required", poll_interval=OFTEN))
async def fails() -> str:
    """Fail."""
    raise ValueError("not today")


@mcp.tool
def plain() -> str:
    """Be no task."""
    return "plain"


@mcp.tool(task=TaskConfig(poll_interval=OFTEN))
async def asks(ctx: Context) -> str | mcp_types.InputRequiredResult:
    """Ask something, and go on with the answer."""
    if ctx.input_responses is None:
        schema = {"type": "object", "properties": {"dish": {"type": "string"}}, "required": ["dish"]}
        question = mcp_types.ElicitRequestFormParams(message="Which dish?", requested_schema=schema)
        request = mcp_types.ElicitRequest(params=question)
        return mcp_types.InputRequiredResult(result_type="input_required", input_requests={"what": request})
    answer = ctx.input_responses["what"]
    return f"one {answer.content['dish']}"
