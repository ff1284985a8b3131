"""A tool file whose tools report to the user's interface and say what they were given."""

import json
from pathlib import Path
from typing import Any

from fastmcp import Context, FastMCP

mcp = FastMCP("updates")


@mcp.tool
async def draws(filename: str, username: str, ctx: Context) -> dict[str, Any]:
    """Draw on the canvas while working, then return a page."""
    payload = {"type": "canvas_update", "content": "<h1>half</h1>", "progress_message": "half done"}
    await ctx.report_progress(1, 2, "MCP_UPDATE:" + json.dumps(payload))
    path = Path(f"/tmp/{username}/page.html")
    path.write_text(f"<p>{Path(filename).read_text()}</p>")
    return {
        "results": "drawn",
        "artifacts": [{"name": "page.html", "path": str(path), "mime": "text/html"}],
        "display": {"open_canvas": True, "notification": "the page is ready"},
    }


@mcp.tool
def echoes(filename: str, file_names: list[str], note: str = "") -> list[Any]:
    """Say what it was given."""
    return [filename, file_names, note]
