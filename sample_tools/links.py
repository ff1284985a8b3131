"""Two kinds of links: files that a tool fetches, and a resource that a client reads when it wants to.

    runner call sample_tools/links.py digests file_names=@sample_tools/data/sales.csv

A tool that takes `file_names` is given a download link for each name. It needs no folder, no login and no
network: each link opens that one file for an hour, and leads to the runner.
"""

import asyncio
import hashlib
import urllib.request
from typing import Any

from fastmcp import Context, FastMCP
from fastmcp.tools import ToolResult
from mcp_types import ResourceLink, TextContent

mcp = FastMCP("links")

UNITS = "manual://units"


@mcp.tool
async def digests(file_names: list[str], ctx: Context) -> dict[str, Any]:
    """Return length and SHA-256 of files."""
    found = []
    for done, link in enumerate(file_names, 1):
        found.append(await asyncio.to_thread(digest, link))
        await ctx.report_progress(done, len(file_names))
    return {"results": found}


def digest(link: str) -> dict[str, Any]:
    """Fetch one file, piece by piece."""
    read, length = hashlib.sha256(), 0
    with urllib.request.urlopen(link, timeout=20) as answer:
        while piece := answer.read(1 << 20):
            read.update(piece)
            length += len(piece)
    return {"bytes": length, "sha256": read.hexdigest()}


@mcp.tool
def manual() -> ToolResult:
    """Return a link to the manual."""
    link = ResourceLink(type="resource_link", uri=UNITS, name="units", mime_type="text/plain")
    return ToolResult(content=[TextContent(type="text", text="The units are in the manual."), link])


@mcp.resource(UNITS)
def units() -> str:
    """Return the page of the manual on units."""
    return "Lengths are in bytes; digests are SHA-256, in hexadecimal digits."
