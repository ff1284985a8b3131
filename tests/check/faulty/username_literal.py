"""Asks for who calls as one of two, of which nobody else is any."""

from typing import Annotated, Literal

from fastmcp import FastMCP
from pydantic import Field

mcp = FastMCP("small")


@mcp.tool
def known(
    username: Annotated[Literal["ann", "bob"], Field(description="who calls")],  # expect: username-type
) -> str:
    """Say who calls, of two."""
    return username
