"""Writes a table into the home, and returns how long it is."""

from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def table(rows: list[str], username: str) -> dict[str, int]:
    """Write a table."""
    Path(f"/tmp/{username}/table.csv").write_text("\n".join(rows))  # expect: unreturned-file
    return {"results": len(rows)}
