"""Tools of a server that is watched."""

import asyncio
from pathlib import Path

from fastmcp import Context, FastMCP

mcp = FastMCP("watched")


@mcp.tool
def greet(name: str) -> str:
    """Greet."""
    return f"hello {name}"


@mcp.tool
def copied(filename: str, username: str) -> dict[str, object]:
    """Return a copy of a file."""
    target = Path(f"/tmp/{username}/copy.txt")
    target.write_bytes(Path(filename).read_bytes())
    return {"results": "copied", "artifacts": [{"path": str(target)}]}


@mcp.tool
def leaves(username: str) -> str:
    """Write a file and do not return it."""
    Path(f"/tmp/{username}/left.txt").write_text("left")
    return "done"


@mcp.tool
async def waits() -> str:
    """Wait for longer than any test."""
    await asyncio.sleep(20)
    return "done"


@mcp.tool
def fails() -> str:
    """Fail."""
    raise ValueError("it is so")


@mcp.tool
def trespasses() -> str:
    """Try to write where only the system may."""
    try:
        Path("/etc/trespass").write_text("x")
    except OSError as error:
        return type(error).__name__
    return "written"


@mcp.tool
def traced(ctx: Context) -> str:
    """Return the trace that the caller's span is of."""
    request = ctx.request_context
    assert request is not None
    return str(getattr(request.meta, "traceparent", None) or dict(request.meta or {}).get("traceparent"))


if __name__ == "__main__":
    mcp.run()
