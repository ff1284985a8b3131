"""A tool file whose tools do with files what tools should not, and a few things that they may."""

import errno
import os
import time
from pathlib import Path
from typing import Any

from fastmcp import FastMCP
from pydantic import BaseModel

mcp = FastMCP("odd-files")


class Report(BaseModel):
    """A result whose schema allows nothing else."""

    results: str
    artifacts: list[dict[str, str]]


def attempt(path: Path) -> str:
    try:
        path.write_text("written")
    except OSError as error:
        return errno.errorcode[error.errno]
    return "written"


@mcp.tool
def report(username: str) -> Report:
    """Return a file in a closed shape."""
    path = Path(f"/tmp/{username}/report.txt")
    path.write_text("the report")
    return Report(results="done", artifacts=[{"name": "report.txt", "path": str(path), "mime": "text/plain"}])


@mcp.tool
def makes(filename: str, size: int, username: str) -> dict[str, Any]:
    """Write a file under the name of an argument that is usually an input."""
    path = Path(f"/tmp/{username}", filename)
    path.write_bytes(b"x" * size)
    return {
        "results": filename,
        "artifacts": [{"name": filename, "path": str(path), "mime": "text/plain", "size": 7}],
    }


@mcp.tool
def reads_and_writes(filename: str) -> dict[str, Any]:
    """Read the input and try to write, in a tool that may not."""
    path = Path(filename)
    places = [path.parent / "beside.txt", path.parents[1] / "home.txt", Path(os.environ["HOME"], "own.txt")]
    return {"text": path.read_text(), "attempts": [attempt(place) for place in places]}


@mcp.tool
def reads_and_writes_at_home(filename: str, username: str) -> dict[str, Any]:
    """The same in a tool that may."""
    return reads_and_writes(filename)


@mcp.tool
def meets(filename: str, me: str, other: str, username: str) -> dict[str, Any]:
    """Change the input while another call has the same file, and read it again."""
    path = Path(filename)
    text = path.read_text()
    path.unlink()
    path.write_text(text + me)
    Path(f"/tmp/{username}/{me}").touch()
    while not Path(f"/tmp/{username}/{other}").exists():
        time.sleep(0.01)
    return {"path": filename, "text": path.read_text()}


@mcp.tool
def peeks(path: str, username: str) -> dict[str, str]:
    """Look at a path in every way there is."""
    ways = {
        "read": lambda: Path(path).read_text(),
        "list": lambda: str(sorted(os.listdir(Path(path).parent))),
        "write": lambda: Path(path).write_text("mine") and "written",
        "link": lambda: os.link(path, f"/tmp/{username}/linked") or "linked",
        "remove": lambda: os.remove(path) or "removed",
    }
    found = {}
    for name, way in ways.items():
        try:
            found[name] = str(way())
        except OSError as error:
            found[name] = errno.errorcode[error.errno]
    return found


@mcp.tool
def hands_back(filename: str, username: str) -> dict[str, Any]:
    """Return the input as an artifact, and nothing else."""
    return {"artifacts": [{"name": "back.bin", "path": filename, "mime": "application/octet-stream"}]}
