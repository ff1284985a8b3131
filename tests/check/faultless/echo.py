"""After FastMCP's echo example (Apache-2.0), rewritten."""

from fastmcp import FastMCP

mcp = FastMCP("Echo")


@mcp.tool
def echo(text: str) -> str:
    """Return the text as it came."""
    return text


@mcp.resource("echo://static")
def echo_resource() -> str:
    return "echo!"


@mcp.resource("echo://{text}")
def echo_template(text: str) -> str:
    """Return the text of the address."""
    return f"echo: {text}"


@mcp.prompt("echo")
def echo_prompt(text: str) -> str:
    return text
