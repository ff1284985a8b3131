"""A server whose tools may become tasks of MCP."""

import asyncio
import fcntl
import time
from datetime import timedelta
from pathlib import Path

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
    """Elicit a dish, and continue with the answer."""
    if ctx.input_responses is None:
        schema = {"type": "object", "properties": {"dish": {"type": "string"}}, "required": ["dish"]}
        question = mcp_types.ElicitRequestFormParams(message="Which dish?", requested_schema=schema)
        request = mcp_types.ElicitRequest(params=question)
        return mcp_types.InputRequiredResult(result_type="input_required", input_requests={"what": request})
    answer = ctx.input_responses["what"]
    return f"one {answer.content['dish']}"


def question(message: str) -> mcp_types.ElicitRequest:
    """A question that is answered with a word."""
    schema = {"type": "object", "properties": {"dish": {"type": "string"}}, "required": ["dish"]}
    return mcp_types.ElicitRequest(
        params=mcp_types.ElicitRequestFormParams(message=message, requested_schema=schema)
    )


@mcp.tool(task=TaskConfig(poll_interval=OFTEN))
async def asks_again(ctx: Context) -> str | mcp_types.InputRequiredResult:
    """Elicit two answers under two names, then another one under one of these names."""
    answers = ctx.input_responses or {}
    if "first" in answers and "second" not in answers:
        return f"{ctx.request_state} and {answers['first'].content['dish']}"
    if answers:
        dishes = " and ".join(answers[name].content["dish"] for name in ("first", "second"))
        return mcp_types.InputRequiredResult(
            result_type="input_required", input_requests={"first": question("third?")}, request_state=dishes
        )
    questions = {"first": question("first?"), "second": question("second?")}
    return mcp_types.InputRequiredResult(result_type="input_required", input_requests=questions)


@mcp.tool(task=TaskConfig(poll_interval=OFTEN))
async def hangs(seconds: float, file: str, username: str) -> str:
    """Lock a file for as long as this process lives, and hang."""
    with Path("/tmp", username, file).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        time.sleep(seconds)
    return "over"


@mcp.tool(task=TaskConfig(poll_interval=OFTEN))
async def chatters(reports: int, ctx: Context) -> str:
    """Report progress very often."""
    for number in range(reports):
        await ctx.report_progress(number, reports, f"report {number}")
    return "said"


@mcp.tool(task=TaskConfig(poll_interval=OFTEN))
async def fills() -> str:
    """Take more memory than there is."""
    return str(len(bytearray(64 * 1024**3)))
