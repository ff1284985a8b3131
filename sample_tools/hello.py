from fastmcp import FastMCP

mcp = FastMCP("shout")


@mcp.tool
def shout(text: str) -> str:
    """Return text in capitals."""
    return text.upper()
