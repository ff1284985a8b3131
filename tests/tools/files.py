"""A tool file that reads inputs and writes artifacts."""

import os
from pathlib import Path
from typing import Any

from fastmcp import FastMCP

mcp = FastMCP("files")


@mcp.tool
def make(name: str, size: int, username: str, where: str = "") -> dict[str, Any]:
    """Write a file of `size` bytes and return it as an artifact."""
    path = Path(where or f"/tmp/{username}", name)
    path.write_bytes(b"x" * size)
    return {
        "results": {"written": size},
        "artifacts": [{"name": name, "path": str(path), "mime": "text/plain"}],
    }


@mcp.tool
def claim(paths: list[str], username: str) -> dict[str, Any]:
    """Return artifacts at any paths."""
    artifacts = [{"name": f"{i}.txt", "path": path, "mime": "text/plain"} for i, path in enumerate(paths)]
    return {"results": {"user": username}, "artifacts": artifacts}


@mcp.tool
def only_claim(path: str, username: str) -> dict[str, Any]:
    """Return one artifact and nothing else."""
    return {"artifacts": [{"name": "a.txt", "path": path, "mime": "text/plain"}]}


@mcp.tool
def look(username: str) -> dict[str, Any]:
    """Return what a tool finds around itself."""
    home = Path(os.environ["HOME"])
    return {
        "cwd": os.getcwd(),
        "home": str(home),
        "files": sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()),
        "user": os.environ["USER"],
        "uid": os.getuid(),
    }


@mcp.tool
def read(filename: str, username: str) -> dict[str, Any]:
    """Read the input file."""
    path = Path(filename)
    return {"path": filename, "text": path.read_text(), "mode": oct(path.stat().st_mode & 0o777)}


@mcp.tool
def read_many(filenames: list[str], username: str) -> dict[str, Any]:
    """Read the input files."""
    return {path: Path(path).read_text() for path in filenames}


@mcp.tool
def read_only(filename: str) -> dict[str, Any]:
    """Read the input file in a tool that may not write."""
    return {"path": filename, "text": Path(filename).read_text()}


@mcp.tool
def spoil(filename: str, username: str) -> dict[str, Any]:
    """Do to the input copy whatever can be done."""
    path = Path(filename)
    path.chmod(0o666)
    path.unlink()
    path.write_text("spoilt")
    return {"text": path.read_text()}


@mcp.tool
def write(path: str, username: str) -> str:
    """Write anywhere."""
    Path(path).write_text("written")
    return path


@mcp.tool
def write_nowhere(path: str) -> str:
    """Write anywhere, in a tool that may not write."""
    Path(path).write_text("written")
    return path


@mcp.tool
def places() -> dict[str, str]:
    """Return the folders that a tool without a home gets."""
    return {name: os.environ[name] for name in ("HOME", "TMPDIR", "MPLCONFIGDIR")}
