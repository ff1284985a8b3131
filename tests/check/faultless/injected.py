"""After FastMCP's example of dependencies (Apache-2.0), rewritten. What is injected needs no type."""

from fastmcp import Context, FastMCP
from fastmcp.dependencies import CurrentContext, Depends, Progress

mcp = FastMCP("Injected")


def configuration() -> dict[str, str]:
    return {"unit": "km"}


@mcp.tool
async def distance(miles: float, config=Depends(configuration), ctx: Context = CurrentContext()) -> str:
    """Turn miles into kilometres."""
    await ctx.info("converting")
    return f"{miles * 1.609} {config['unit']}"


@mcp.tool
async def slowly(names: list[str], progress=Progress()) -> int:
    """Count names, one at a time."""
    await progress.set_total(len(names))
    for _ in names:
        await progress.increment()
    return len(names)
