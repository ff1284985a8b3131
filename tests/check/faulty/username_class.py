"""Asks for who calls as an object, of which a name is none."""

from fastmcp import FastMCP
from pydantic import BaseModel

mcp = FastMCP("small")


class User(BaseModel):
    name: str


@mcp.tool
def mine(
    username: User,  # expect: username-type
) -> str:
    """Say who calls."""
    return username.name
