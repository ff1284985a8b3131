"""The singular, beside files."""

from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def table(username: str) -> dict[str, object]:
    """Return a table."""
    target = Path(f"/tmp/{username}/table.csv")
    target.write_text("a,b\n")
    return {
        "result": "written",  # expect: misspelled-results
        "artifacts": [{"name": "table.csv", "path": str(target), "mime": "text/csv"}],
    }
