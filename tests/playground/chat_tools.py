"""Tools that a model calls in a chat: some only read, one destroys, one takes its time."""

import base64
import time
from pathlib import Path
from typing import Any

from fastmcp import FastMCP
from fastmcp.tools import ToolResult
from mcp_types import ImageContent, TextContent, ToolAnnotations

mcp = FastMCP("chatty", instructions="Double numbers, never guess.")
READS = ToolAnnotations(read_only_hint=True)
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@mcp.tool(annotations=READS)
def double(number: int) -> str:
    """Double a number."""
    return f"{number} doubled is {2 * number}"


@mcp.tool(annotations=ToolAnnotations(destructive_hint=True))
def wipe(folder: str) -> str:
    """Remove a folder for good."""
    return f"{folder} is gone"


@mcp.tool
def note(text: str) -> str:
    """Write a note down."""
    return f"noted: {text}"


@mcp.tool(name="wait.for/it", annotations=READS)
def wait() -> str:
    """Wait for a long time."""
    time.sleep(25)
    return "waited"


@mcp.tool(annotations=READS)
def chart(username: str) -> dict[str, Any]:
    """Make a table as a file."""
    file = Path(f"/tmp/{username}/table.csv")
    file.write_text("town,people\nRome,3\nOslo,1\n")
    return {
        "results": "A table of 2 towns.",
        "artifacts": [{"name": "table.csv", "path": str(file), "mime": "text/csv"}],
    }


@mcp.tool(annotations=READS)
def picture() -> ToolResult:
    """Return a small picture."""
    assert base64.b64decode(PIXEL)
    image = ImageContent(type="image", data=PIXEL, mime_type="image/png")
    return ToolResult(content=[TextContent(type="text", text="A dot."), image])
