"""Keep a draft for later calls, and finish it when it is asked for by its name: a deferred artifact.

    runner call sample_tools/drafts.py draft title="Spring sale"
    runner files ls
    runner call sample_tools/drafts.py finish filename="Spring sale.md" text="Ten percent off all bulbs."

A draft is kept for 24 hours and not handed on; what `finish` returns is a file like any other.
"""

from pathlib import Path
from typing import Any

from fastmcp import FastMCP

mcp = FastMCP("drafts")


@mcp.tool
def draft(title: str, username: str) -> dict[str, Any]:
    """Begin a letter that somebody has to complete."""
    path = Path(f"/tmp/{username}/{title}.md")
    path.write_text(f"# {title}\n\n(what is on offer?)\n", encoding="utf-8")
    return {
        "results": {"draft": path.name},
        "deferred_artifacts": [
            {
                "name": path.name,
                "path": str(path),
                "mime": "text/markdown",
                "reason": "needs_editing",
                "next_actions": [f"call finish with filename {path.name!r} and what is on offer"],
                "expires_hours": 24,
            }
        ],
    }


@mcp.tool
def finish(filename: str, text: str, username: str) -> dict[str, Any]:
    """Complete a draft, which comes as a read-only copy of what was kept."""
    letter = Path(filename).read_text(encoding="utf-8").replace("(what is on offer?)", text)
    path = Path(f"/tmp/{username}/letter.md")
    path.write_text(letter, encoding="utf-8")
    return {
        "results": {"words": len(letter.split())},
        "artifacts": [{"name": path.name, "path": str(path), "mime": "text/markdown", "category": "report"}],
    }
