"""Types as strings, from the future, optional and positional-only."""

from __future__ import annotations

from typing import Any, Optional

from fastmcp import Context, FastMCP

mcp: FastMCP[Any] = FastMCP("Loose")


@mcp.tool
async def greet(name: str, title: Optional[str] = None, *, times: int = 1, ctx: Context = None) -> list[str]:  # type: ignore[assignment]
    """Greet someone."""
    await ctx.debug("greeting")
    return [f"Hello {title or ''} {name}"] * times
