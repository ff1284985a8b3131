"""The same, for a method registered by hand."""

from fastmcp import FastMCP

mcp = FastMCP("small")


class Voice:
    def shout(self, text: str) -> str:  # expect: missing-docstring
        return text.upper()


voice = Voice()
mcp.tool(voice.shout)
