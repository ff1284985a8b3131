"""Tools by which a test sees what a client puts before its model: files, and no large facts."""

from typing import Any

from fastmcp import FastMCP
from pydantic import BaseModel

mcp = FastMCP("told", instructions="Be brief.")
FACTS = {"rows": 3, "trace": "withheld " * 1000}


class Report(BaseModel):
    """A contract value of which the schema says every field."""

    results: dict[str, int]
    meta_data: dict[str, Any]


@mcp.tool
def count(filename: str) -> int:
    """Count the bytes of a file."""
    with open(filename, "rb") as file:
        return len(file.read())


@mcp.tool
def ping() -> str:
    """Take no file."""
    return "pong"


@mcp.tool
def facts() -> dict[str, Any]:
    """Return more facts than a model reads."""
    return {"results": {"rows": 3}, "meta_data": FACTS}


@mcp.tool
def closed_facts() -> Report:
    """Return the same with a schema that wants them."""
    return Report(results={"rows": 3}, meta_data=FACTS)
