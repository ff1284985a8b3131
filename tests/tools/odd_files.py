"""A tool file whose tools do with files what tools should not, and a few things that they may."""

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
        return type(error).__name__
    return "written"


@mcp.tool
def report(username: str) -> Report:
    """Return a file in a closed shape."""
    path = Path(f"/tmp/{username}/report.txt")
    path.write_text("the report")
    return Report(
        results="done", artifacts=[{"name": "report.txt", "path": str(path), "mime": "text/plain"}]
    )


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
    path.chmod(0o600)
    path.write_text(path.read_text() + me)
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
            found[name] = type(error).__name__
    return found


@mcp.tool
def odd_artifacts(username: str, outside: str) -> dict[str, Any]:
    """Name things as artifacts that are none, beside one that is."""
    home = Path(f"/tmp/{username}")
    (home / "good.txt").write_text("good")
    (home / "folder").mkdir()
    (home / "symlink").symlink_to(home / "good.txt")
    (home / "symlink_out").symlink_to(outside)
    (home / "linked_folder").symlink_to(Path(outside).parent)
    (home / "original").write_text("two names")
    os.link(home / "original", home / "hardlink")
    os.mkfifo(home / "fifo")
    paths = {
        "good": home / "good.txt",
        "missing": home / "missing.txt",
        "folder": home / "folder",
        "symlink": home / "symlink",
        "symlink-out": home / "symlink_out",
        "through-link": home / "linked_folder" / Path(outside).name,
        "hardlink": home / "hardlink",
        "fifo": home / "fifo",
        "device": Path("/dev/zero"),
        "outside": Path(outside),
        "dots": home / ".." / Path(outside).name,
    }
    artifacts = [{"name": name, "path": str(path), "mime": "text/plain"} for name, path in paths.items()]
    return {"results": "made", "artifacts": artifacts}


@mcp.tool
def hands_back(filename: str, username: str) -> dict[str, Any]:
    """Return the input as an artifact, and nothing else."""
    return {"artifacts": [{"name": "back.bin", "path": filename, "mime": "application/octet-stream"}]}


@mcp.tool
def waits(username: str, word: str, until: str) -> dict[str, Any]:
    """Write a file, and stay until another one is there."""
    Path(f"/tmp/{username}/{word}").write_text(word)
    while not Path(f"/tmp/{username}/{until}").exists():
        time.sleep(0.01)
    return {"files": sorted(path.name for path in Path(f"/tmp/{username}").iterdir() if path.is_file())}
