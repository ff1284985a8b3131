"""A server of somebody else that knows the words of the contract: over stdio, or over HTTP with a port."""

import base64
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

import mcp_types
from fastmcp import Context, FastMCP
from fastmcp.server.elicitation import AcceptedElicitation
from fastmcp.tools import ToolResult

PNG = bytes.fromhex("89504e470d0a1a0a") + bytes(range(256)) * 8
CONTENT = b"%PDF-1.7\n" + bytes(range(256)) * 20
ENCODED = base64.b64encode(CONTENT).decode()
TOKEN = "canvas-token-that-no-model-reads"

mcp = FastMCP("upstream", version="1.0")


def entry(name: str) -> dict[str, str]:
    return {"name": name, "b64": ENCODED, "mime": "application/pdf"}


@mcp.tool
def whoami(username: str) -> dict[str, Any]:
    """A result of version 2."""
    return {
        "results": {"username": username},
        "meta_data": {"rows": 3},
        "artifacts": [entry("hello.pdf")],
        "display": {"open_canvas": True, "primary_file": "hello.pdf", "viewer_hint": "pdf"},
    }


@mcp.tool
def first_version(username: str) -> dict[str, Any]:
    return {
        "results": "one",
        "meta-data": {"rows": 1},
        "returned_file_names": ["a.pdf", "b.pdf"],
        "returned_file_contents": [ENCODED, {"name": "b.pdf", "b64": ENCODED}],
    }


@mcp.tool
def newest_version(username: str) -> dict[str, Any]:
    canvas = {"type": "iframe", "url": "https://pages.example/x", "token": TOKEN}
    return {"results": {"n": 2}, "retryable": False, "artifacts": [entry("c.pdf")], "canvas": canvas}


@mcp.tool
def content_blocks(username: str) -> ToolResult:
    blob = mcp_types.BlobResourceContents(uri="file:///d.pdf", mime_type="application/pdf", blob=ENCODED)
    return ToolResult(
        content=[
            mcp_types.TextContent(type="text", text="two files"),
            mcp_types.ImageContent(type="image", data=base64.b64encode(PNG).decode(), mime_type="image/png"),
            mcp_types.EmbeddedResource(type="resource", resource=blob),
        ]
    )


@mcp.tool
def envelope_as_text(username: str) -> ToolResult:
    import json

    text = json.dumps({"results": "in a text", "artifacts": [entry("e.pdf")]})
    return ToolResult(content=[mcp_types.TextContent(type="text", text=text)])


@mcp.tool
def fails(username: str) -> str:
    raise ValueError(f"no rows for {username}")


@mcp.tool
def plain(text: str) -> str:
    """A tool without any of our words."""
    return text


@mcp.tool
def plain_size(size: int) -> str:
    """Another one, which fails where no text has that size."""
    if size < 0:
        raise ValueError("no such size")
    return "x" * size


@mcp.tool
def lone_envelope() -> dict[str, Any]:
    """The same, with an envelope for a result."""
    return {"results": "lone", "artifacts": [{"name": "small.txt", "b64": "aGVsbG8=", "mime": "text/plain"}]}


@mcp.tool
def take(filename: str) -> dict[str, Any]:
    """Return the origin and the facts of a file."""
    return {"results": {"given": filename, "content": fetched(filename)}}


@mcp.tool
def take_many(filenames: list[str], username: str) -> dict[str, Any]:
    return {"results": {"given": filenames, "contents": [fetched(name) for name in filenames]}}


@mcp.tool
def take_links(file_names: list[str]) -> dict[str, Any]:
    return {"results": {"given": file_names, "contents": [fetched(name) for name in file_names]}}


def fetched(place: str) -> str | None:
    try:
        if place.startswith("http://"):
            with urllib.request.urlopen(place, timeout=180) as answer:
                return str(answer.read().decode())
        return Path(place).read_text()
    except (OSError, ValueError):
        return None


@mcp.tool
def make(username: str, text: str, name: str = "made.txt") -> dict[str, Any]:
    """Write a file where tools of the contract do, and name it by its path."""
    path = Path(f"/tmp/{username}") / name
    path.write_text(text)
    return {"results": "made", "artifacts": [{"name": name, "path": str(path), "mime": "text/plain"}]}


@mcp.tool
def name_path(username: str, path: str, link: str | None = None) -> dict[str, Any]:
    """Name any path as a file of ours; perhaps a link in the home that leads there."""
    if link is not None:
        Path(link).symlink_to(path)
    return {"results": "named", "artifacts": [{"name": "x.txt", "path": link or path, "mime": "text/plain"}]}


@mcp.tool
def point(username: str, url: str) -> ToolResult:
    """Name an address in all the places where a result may have one."""
    link = mcp_types.ResourceLink(
        type="resource_link", uri=url, name="linked", mime_type="text/plain", size=3
    )
    content = {
        "results": {"url": url},
        "artifacts": [{"name": "x.txt", "url": url, "uri": url, "mime": "text/plain"}],
        "canvas": {"type": "iframe", "url": url},
        "links": [url],
        "file_url": url,
    }
    return ToolResult(content=[link], structured_content=content)


@mcp.tool
async def ask(username: str, filename: str, ctx: Context) -> dict[str, Any]:
    """Elicit from the client in the middle of the call; the file is read after its answer."""
    answer = await ctx.elicit("Your colour?", response_type=str)
    content = fetched(filename)
    assert isinstance(answer, AcceptedElicitation)
    return {"results": {"colour": answer.data, "username": username, "content": content}}


@mcp.tool
def large(username: str, size: int) -> dict[str, Any]:
    """A file of random bytes, as text that base64 can have."""
    content = base64.b64encode(os.urandom(size)).decode()
    return {"results": "large", "artifacts": [{"name": "large.bin", "b64": content}]}


@mcp.tool
async def steps(username: str, ctx: Context) -> dict[str, Any]:
    for n in range(3):
        await ctx.report_progress(n, 3, f"step {n}")
    await ctx.info("half way")
    return {"results": "done", "artifacts": [entry("steps.pdf")]}


@mcp.tool
def surroundings(username: str) -> dict[str, Any]:
    return {"results": {"home": os.environ.get("HOME"), "temporary": os.environ.get("TMPDIR")}}


@mcp.resource("note://short")
def short() -> str:
    return "a note"


if __name__ == "__main__":
    if sys.argv[1:]:
        mcp.run("http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
    else:
        mcp.run("stdio", show_banner=False)
