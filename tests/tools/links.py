"""Tools of version 2, which are given links, and tools that try to reach more than theirs."""

import contextlib
import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import httpx2
from fastmcp import Context, FastMCP

from runner.author import ArtifactError, artifacts

mcp = FastMCP("links")


@mcp.tool
def fetch(file_names: list[str]) -> dict:
    """Fetch files with urllib and say what is in them."""
    texts = []
    for link in file_names:
        with urllib.request.urlopen(link, timeout=10) as response:
            texts.append(response.read().decode())
    return {"results": {"texts": texts}}


@mcp.tool
async def fetch_async(file_names: list[str]) -> dict:
    """Fetch files with an async client."""
    async with httpx2.AsyncClient(trust_env=False) as client:
        answers = [await client.get(link) for link in file_names]
    return {"results": {"texts": [answer.text for answer in answers]}}


@mcp.tool
def fetch_in_a_program(file_names: list[str], username: str) -> dict:
    """Fetch a file in a program of its own."""
    program = (
        "import sys, urllib.request; sys.stdout.buffer.write(urllib.request.urlopen(sys.argv[1]).read())"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program, file_names[0]], capture_output=True, check=False
    )
    return {"results": {"texts": [completed.stdout.decode()], "fault": completed.stderr.decode()[-300:]}}


@mcp.tool
def fetch_one(filename: str) -> dict:
    """Fetch a file whose name is given as `filename`."""
    with urllib.request.urlopen(filename, timeout=10) as response:
        return {"results": {"texts": [response.read().decode()]}}


@mcp.tool
def links(file_names: list[str]) -> dict:
    """Return the links themselves."""
    return {"results": {"links": file_names}}


@mcp.tool
def status(file_names: list[str], path: str) -> dict:
    """Return the status of another path at the server of a link."""
    base = file_names[0].split("/api/")[0]
    try:
        with urllib.request.urlopen(base + path, timeout=10) as response:
            return {"results": {"status": response.status}}
    except urllib.error.HTTPError as error:
        return {"results": {"status": error.code}}


@mcp.tool
def reach(host: str, port: int, file_names: list[str]) -> dict:
    """Try to reach some address."""
    try:
        with socket.create_connection((host, port), timeout=5) as connection:
            return {"results": {"reached": list(connection.getpeername())}}
    except OSError as error:
        return {"results": {"error": type(error).__name__, "errno": error.errno}}


@mcp.tool
def reach_or_fail(host: str, port: int, file_names: list[str]) -> dict:
    """Reach some address, or fail with what the kernel says."""
    socket.create_connection((host, port), timeout=5).close()
    return {"results": "reached"}


@mcp.tool
def open_link(file_names: list[str]) -> dict:
    """Take a link for a path."""
    with open(file_names[0]) as file:
        return {"results": file.read()}


@mcp.tool
def reach_without_links(host: str, port: int) -> dict:
    """Try the same in a tool that is given no links."""
    return reach(host, port, [])


@mcp.tool
async def put(text: str, username: str) -> dict:
    """Put text while running."""
    ref = await artifacts.put_text(text, filename="note.txt", meta={"why": "test"})
    return {"results": {"ref": ref.model_dump()}}


@mcp.tool
async def put_by_context(text: str, username: str, ctx: Context) -> dict:
    """Put bytes by what the context has for that."""
    ref = await ctx.artifacts.put_bytes(
        text.encode(), mime_type="text/plain", filename="note.txt", meta={"why": "test"}
    )
    return {"results": {"ref": ref.model_dump()}}


@mcp.tool
async def put_as(mime: str, username: str) -> dict:
    """Put text of some MIME type, given with the escapes of JSON."""
    ref = await artifacts.put_bytes(mime.encode(), mime_type=json.loads(f'"{mime}"'), filename="a.txt")
    return {"results": {"mime": ref.mime_type}}


@mcp.tool
async def put_many_bytes(size: int, username: str) -> dict:
    """Put many bytes while running."""
    ref = await artifacts.put_bytes(b"x" * size, filename="big.bin", mime_type="application/octet-stream")
    return {"results": {"ref": ref.model_dump()}}


@mcp.tool
async def put_path(path: str, username: str) -> dict:
    """Put a file by its path."""
    try:
        ref = await artifacts.put_file(path)
    except ArtifactError as error:
        return {"results": {"refused": str(error)}}
    return {"results": {"ref": ref.model_dump()}}


@mcp.tool
async def put_own(username: str) -> dict:
    """Write a file in the home and put it, twice."""
    with open(f"/tmp/{username}/own.txt", "w") as file:
        file.write("mine")
    refs = [await artifacts.put_file(f"/tmp/{username}/own.txt") for _ in range(2)]
    return {"results": {"refs": [ref.model_dump() for ref in refs]}}


@mcp.tool
async def put_without_home(text: str) -> dict:
    """Put text in a tool without `username`."""
    with contextlib.suppress(ArtifactError):
        await artifacts.put_text(text)
        return {"results": "kept"}
    return {"results": "refused"}
