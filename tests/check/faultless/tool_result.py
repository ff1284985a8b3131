"""After FastMCP's example of a ToolResult (Apache-2.0), rewritten."""

from dataclasses import asdict, dataclass

from fastmcp import FastMCP
from fastmcp.tools import ToolResult

mcp = FastMCP("Echo with a result")


@dataclass
class Echoed:
    data: str


@mcp.tool
def echo(text: str) -> ToolResult:
    """Return the text, for people and for programs."""
    return ToolResult(content=text, structured_content=asdict(Echoed(data=text)), meta={"some": "metadata"})
