"""Tools for what the contract promises people: one for each thing that a result or an event can say."""

import asyncio
import base64
import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import mcp_types
from fastmcp import Context, FastMCP
from fastmcp.tools import ToolResult

mcp = FastMCP("promises")
TABLE = "region,units\nnorth,1\nsouth,2\n"


def png(width: int = 320, height: int = 160, pixels: bytes | None = None) -> bytes:
    """Return a picture, of one colour where no pixels are given."""
    drawn = pixels or bytes((11, 107, 93)) * width * height
    rows = b"".join(b"\0" + drawn[at : at + 3 * width] for at in range(0, len(drawn), 3 * width))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@mcp.tool
def announced() -> dict[str, Any]:
    """Notify people."""
    return {"results": {"stored": 1}, "display": {"notification": "Your report is stored."}}


@mcp.tool
def drafted(username: str) -> dict[str, Any]:
    """Keep a draft for later, and say what can be done with it."""
    path = Path(f"/tmp/{username}/draft.txt")
    path.write_text("not finished")
    draft = {
        "name": "draft.txt",
        "path": str(path),
        "mime": "text/plain",
        "reason": "awaiting_approval",
        "next_actions": ["Ask the team", "Send it to print"],
    }
    return {"results": {"drafts": 1}, "deferred_artifacts": [draft]}


@mcp.tool
def hinted() -> dict[str, Any]:
    """Return the display of files."""
    files = [
        _entry("first.html", b"<h1>As a source</h1>", "text/html"),
        _entry("second.txt", TABLE.encode(), "text/plain", viewer="data"),
        _entry("third.md", b"# As a source", "text/markdown", viewer="code"),
        _entry("fourth.png", png(), "image/png", viewer="code"),
    ]
    display = {"open_canvas": True, "primary_file": "first.html", "viewer_hint": "code"}
    return {"results": {"files": len(files)}, "artifacts": files, "display": display}


@mcp.tool
def sorted_out() -> dict[str, Any]:
    """Make files of several categories."""
    files = [
        _entry("a.csv", TABLE.encode(), "text/csv", category="dataset"),
        _entry("b.txt", b"words", "text/plain"),
    ]
    display = {"open_canvas": True, "category_hint": "draft"}
    return {"results": {"files": 2}, "artifacts": files, "display": display}


@mcp.tool
def packed() -> dict[str, Any]:
    """Make files to be taken along together."""
    files = [_entry("a.txt", b"one", "text/plain"), _entry("ümläut.bin", os.urandom(300_000), "a/b")]
    return {"results": {"files": 2}, "artifacts": files, "display": {"open_canvas": True}}


@mcp.tool
def encoded() -> dict[str, Any]:
    """Return a picture in base64 where a model would read it."""
    return {"results": {"name": "plot", "image": base64.b64encode(png(pixels=os.urandom(153_600))).decode()}}


@mcp.tool
def linked() -> ToolResult:
    """Name resources."""
    links = [
        mcp_types.ResourceLink(
            type="resource_link", uri="data://notes", name="Notes", mime_type="text/plain", size=11
        ),
        mcp_types.ResourceLink(type="resource_link", uri="data://picture.png", name="Picture"),
    ]
    return ToolResult(content=[mcp_types.TextContent(type="text", text="two links"), *links])


@mcp.resource("data://notes", mime_type="text/plain")
def notes() -> str:
    """Some notes."""
    return "read at last"


@mcp.resource("data://picture.png", mime_type="image/png")
def picture() -> bytes:
    """A picture."""
    return png()


@mcp.tool
async def live(ctx: Context, username: str) -> dict[str, Any]:
    """Show a page and a file while it runs; goes on when a file `go` lies in the home."""
    entry = _entry("so-far.csv", TABLE.encode(), "text/csv")
    await _update(ctx, 1, {"type": "artifacts", "artifacts": [entry]})
    await _update(
        ctx, 2, {"type": "canvas_update", "content": "<h1>Half done</h1>", "progress_message": "half"}
    )
    go = Path(f"/tmp/{username}/go")
    while not go.exists():
        await ctx.report_progress(2, 3, "waits")
        await asyncio.sleep(0.05)
    go.unlink()
    picture = base64.b64encode(png()).decode()
    page = f"<h1>All done</h1><img alt='plot' src='data:image/png;base64,{picture}'>"
    await _update(ctx, 3, {"type": "canvas_update", "content": page})
    return {"results": {"done": True}}


@mcp.tool
def release(username: str) -> str:
    """Let it go on."""
    Path(f"/tmp/{username}/go").touch()
    return "released"


@mcp.tool
def facts() -> dict[str, Any]:
    """Return more facts than a model reads."""
    return {"results": {"rows": 3}, "meta_data": {"trace": "withheld " * 1000}}


async def _update(ctx: Context, step: int, payload: dict[str, Any]) -> None:
    await ctx.report_progress(step, 3, "MCP_UPDATE:" + json.dumps(payload))


def _entry(name: str, content: bytes, mime: str, **more: str) -> dict[str, Any]:
    return {"name": name, "b64": base64.b64encode(content).decode(), "mime": mime, **more}
