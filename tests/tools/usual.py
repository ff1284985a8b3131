"""Tools whose calls can be answered directly: with results, errors, steps, questions of every kind."""

import time
from typing import Annotated, Any

from fastmcp import Context, FastMCP
from mcp_types import (
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
    SamplingMessage,
    TextContent,
)
from pydantic import Field

mcp = FastMCP("direct")
CALLS: list[None] = []


@mcp.tool
async def echo(value: Any = None) -> Any:
    return value


@mcp.tool
async def headers(ctx: Context) -> dict[str, Any]:
    from fastmcp.server.dependencies import get_http_headers

    return {"headers": get_http_headers(include_all=True), "client": ctx.client_id}


@mcp.tool
async def steps(count: int, ctx: Context) -> str:
    for number in range(count):
        await ctx.report_progress(number, count, "ümläut")
        await ctx.info("a message")
    return "done"


@mcp.tool
async def blocks(mark: str, username: str) -> str:
    with open(f"/tmp/{username}/{mark}", "w") as file:
        file.write("begun")
    time.sleep(60)
    return "never"


@mcp.tool
def fails() -> str:
    raise ValueError("on purpose")


@mcp.tool
async def asks(ctx: Context) -> Any:
    question = ElicitRequest(
        params=ElicitRequestFormParams(
            message="How many?", requested_schema={"type": "object", "properties": {}}
        )
    )
    return InputRequiredResult(input_requests={"count": question}, request_state="secret state")


@mcp.tool
async def wonders(ctx: Context) -> str:
    """Elicit two answers from the person, with a step before, between and after."""
    await ctx.report_progress(1, 3)
    reply = await ctx.elicit("How many?", str)
    await ctx.report_progress(2, 3)
    more = await ctx.elicit("Is that much?", str)
    await ctx.info("asked")
    return f"{getattr(reply, 'data', None)} {getattr(more, 'data', None)}"


@mcp.tool
async def draws(ctx: Context) -> dict[str, Any]:
    """Sample the client's model twice, with an elicitation between; count the calls of this process."""
    CALLS.append(None)
    drawn = [await _drawn(ctx, "one")]
    reply = await ctx.elicit("More?", str)
    drawn.append(await _drawn(ctx, str(getattr(reply, "data", None))))
    return {"calls": len(CALLS), "drawn": drawn}


async def _drawn(ctx: Context, text: str) -> str:
    message = SamplingMessage(role="user", content=TextContent(type="text", text=text))
    reply = await ctx.session.create_message(messages=[message], max_tokens=10)
    return str(getattr(reply.content, "text", None))


@mcp.tool
async def many() -> list[int]:
    """Return more than a model wants to read at once."""
    return list(range(100_000))


@mcp.tool
async def mirrored(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
    return region
