"""After FastMCP's example of resources and templates (Apache-2.0), rewritten."""

from fastmcp import FastMCP

mcp = FastMCP("Resources")


@mcp.resource("config://app")
def settings() -> str:
    return '{"debug": false}'


@mcp.resource("user://{user_id}/profile")
def profile(user_id: str) -> str:
    return f'{{"user_id": "{user_id}"}}'


@mcp.resource("file://{directory}/{filename}")
def read_file(directory: str, filename: str) -> str:
    return f"Contents of {directory}/{filename}"
