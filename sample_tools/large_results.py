"""Results that are too much for a model, returned as if there were nothing to it.

    runner serve sample_tools/large_results.py

None of these tools thinks of sizes. What a model reads is short: whatever is binary or too long is stored
whole, and a reference stands in its place that says what it was and how to read it.
"""

import base64
import struct
import zlib
from typing import Any

from fastmcp import FastMCP

mcp = FastMCP("large-results")


@mcp.tool
def orders(count: int) -> dict[str, Any]:
    """Return orders, one object each."""
    rows = [
        {"order": number, "article": f"A{number % 500:03}", "cents": 100 + number} for number in range(count)
    ]
    return {"results": rows}


@mcp.tool
def journal(lines: int) -> str:
    """Return a long text."""
    return "\n".join(f"{number:06} all is well" for number in range(lines))


@mcp.tool
def picture(side: int) -> dict[str, Any]:
    """Return a grey square as base64 in a field that nobody declared."""
    rows = b"".join(b"\x00" + bytes((x * y) % 256 for x in range(side)) for y in range(side))
    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    png = (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", head)
        + _chunk(b"IDAT", zlib.compress(rows))
        + _chunk(b"IEND", b"")
    )
    return {"results": {"title": "grey", "image": base64.b64encode(png).decode()}}


def _chunk(kind: bytes, data: bytes) -> bytes:
    """Return one part of a PNG file: its length, kind and content, and a checksum."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
