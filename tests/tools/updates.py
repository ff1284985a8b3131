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
    """Return its arguments."""
    return [filename, file_names, note]


@mcp.tool
async def everywhere(ctx: Context, encoded: str) -> dict:
    """Put bytes wherever an event could carry them."""
    entry = {"name": "so-far.png", "b64": encoded, "mime": "image/png"}
    page = f"<h1>half</h1><img src='data:image/png;base64,{encoded}'>"
    await ctx.report_progress(1, 3, "MCP_UPDATE:" + json.dumps({"type": "artifacts", "artifacts": [entry]}))
    await ctx.report_progress(2, 3, "MCP_UPDATE:" + json.dumps({"type": "canvas_update", "content": page}))
    await ctx.report_progress(3, 3, "at " + encoded)
    await ctx.info("found " + encoded)
    display = {"notification": "made " + encoded}
    return {"results": 1, "artifacts": [entry], "deferred_artifacts": [], "display": display}
