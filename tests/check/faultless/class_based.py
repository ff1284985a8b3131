"""After FastMCP's pattern of tools as methods (Apache-2.0), rewritten."""

from fastmcp import FastMCP

mcp = FastMCP("Methods")


class Calculator:
    def __init__(self, precision: int) -> None:
        self.precision = precision

    def add(self, a: float, b: float) -> float:
        """Add two numbers."""
        return round(a + b, self.precision)

    def register(self, server: FastMCP) -> None:
        server.tool(self.add)


Calculator(3).register(mcp)
