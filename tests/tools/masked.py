"""A tool file that fails with words that are meant for its operator only."""

from fastmcp import FastMCP
from fastmcp.exceptions import ToolError

mcp = FastMCP("masked", mask_error_details=True)
inner = FastMCP("inner", mask_error_details=True)


@mcp.tool
def fails(username: str) -> str:
    """Raise with a secret."""
    raise ValueError("the password is hunter2")


@mcp.tool
def says(username: str) -> str:
    """Raise what is meant for the client."""
    raise ToolError("please give a smaller number")


@mcp.tool
def divides(by: int = 0) -> float:
    """Fail without a home."""
    return 1 / by


@mcp.tool
def quotes(username: str) -> str:
    """Raise with words that end as a masked text does."""
    raise ValueError("there is no 'hunter2'")


@mcp.tool
def denied(username: str) -> str:
    """Do what the runner denies."""
    with open("/nowhere/hunter2", "w") as file:
        file.write("x")
    return "written"


@mcp.resource("notes://secret")
def secret() -> str:
    """Fail as a resource."""
    raise ValueError("the password is hunter2")


@mcp.prompt
def ask() -> str:
    """Fail as a prompt."""
    raise ValueError("the password is hunter2")


@inner.tool
def deep(username: str) -> str:
    """Fail in a server that is mounted."""
    raise ValueError("the password is hunter2")


mcp.mount(inner, namespace="inner")
