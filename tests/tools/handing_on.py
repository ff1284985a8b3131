"""Tools whose results other tools, and models, go on with."""

import pathlib
import sqlite3
from typing import Any

from fastmcp import FastMCP
from fastmcp.tools import ToolResult
from mcp.types import ResourceLink, TextContent

mcp = FastMCP("handing on")
connections: dict[str, sqlite3.Connection] = {}


@mcp.tool
def page() -> str:
    """Return a text that is too long for a model."""
    return "A line of an ordinary page: ä.\n" * 500


@mcp.tool
def analyse(filename: str, username: str) -> dict[str, Any]:
    """Return the length of a file."""
    return {"bytes": len(pathlib.Path(filename).read_bytes())}


@mcp.tool
def report(username: str) -> ToolResult:
    """Write a file and link to it."""
    path = pathlib.Path(f"/tmp/{username}/Bericht Q3 ü.txt")
    path.write_text("report")
    link = ResourceLink(type="resource_link", uri=path.as_uri(), name=path.name, mimeType="text/plain")
    return ToolResult(content=[TextContent(type="text", text=f"Saved to {path}."), link])


@mcp.tool
def workbook(username: str) -> dict[str, Any]:
    """Write a file and return its path."""
    path = pathlib.Path(f"/tmp/{username}/out/book.csv")
    path.parent.mkdir(exist_ok=True)
    path.write_text("a")
    return {"message": f"see {path}", "filepath": str(path)}


@mcp.tool
def latest(username: str) -> dict[str, Any]:
    """Return the path of what an earlier call has written, and of what no call has."""
    home = pathlib.Path(f"/tmp/{username}")
    return {"filepath": f"{home}/out/book.csv", "missing": f"{home}/none.csv"}


def notes(username: str) -> sqlite3.Connection:
    """Return a connection that stays open between calls."""
    if username not in connections:
        connections[username] = sqlite3.connect(
            f"/tmp/{username}/notes.db", check_same_thread=False, isolation_level=None
        )
        connections[username].execute("PRAGMA journal_mode = WAL")
        connections[username].execute("CREATE TABLE IF NOT EXISTS notes(body)")
    return connections[username]


@mcp.tool
def note(body: str, username: str) -> str:
    """Keep a note."""
    notes(username).execute("INSERT INTO notes VALUES(?)", (body,))
    return "kept"


@mcp.tool
def export(username: str) -> dict[str, Any]:
    """Return the database of the notes."""
    notes(username)
    return {"results": "ok", "artifacts": [{"name": "export.db", "path": f"/tmp/{username}/notes.db"}]}
