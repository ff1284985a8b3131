"""Open something beside the chat: files of a result, or a page of a server that the operator named.

    RUNNER_IFRAME_ORIGINS=https://status.example.com runner serve sample_tools/canvas.py --transport http

`compare` says which of its files opens first, and how. `monitor` opens a dashboard in a tab that stays;
without that setting, the Playground says why it does not.
"""

from pathlib import Path
from typing import Any

from fastmcp import FastMCP

mcp = FastMCP("canvas")

DASHBOARD = "https://status.example.com/shop"


@mcp.tool
def compare(old: str, new: str, username: str) -> dict[str, Any]:
    """Show two texts beside each other, with a page that says how long each is."""
    home = Path(f"/tmp/{username}")
    (home / "old.txt").write_text(old, encoding="utf-8")
    (home / "new.txt").write_text(new, encoding="utf-8")
    page = f"<h1>Two texts</h1><p>{len(old)} and {len(new)} characters</p>"
    (home / "summary.html").write_text(page, encoding="utf-8")
    return {
        "results": {"grown_by": len(new) - len(old)},
        "artifacts": [
            {"name": "old.txt", "path": str(home / "old.txt"), "mime": "text/plain"},
            {"name": "new.txt", "path": str(home / "new.txt"), "mime": "text/plain"},
            {"name": "summary.html", "path": str(home / "summary.html"), "mime": "text/html"},
        ],
        "display": {"open_canvas": True, "primary_file": "summary.html", "mode": "split"},
    }


@mcp.tool
def monitor() -> dict[str, Any]:
    """Open the dashboard of the shop, in the same tab each time."""
    return {
        "results": {"opened": DASHBOARD},
        "canvas": {
            "open": True,
            "id": "shop-status",
            "type": "iframe",
            "url": DASHBOARD,
            "title": "Shop",
            "persistence": "session",
        },
    }
