"""Another key of the contract, misspelled."""

from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def table(username: str) -> dict[str, object]:
    """Return a table."""
    target = Path(f"/tmp/{username}/table.csv")
    target.write_text("a,b\n")
    files = [{"name": "table.csv", "path": str(target), "mime": "text/csv"}]
    return {"results": "written", "artefacts": files}  # expect: misspelled-key
