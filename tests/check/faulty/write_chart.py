"""Saves a figure, from a tool with a name of its own."""

from fastmcp import FastMCP
from matplotlib.figure import Figure

mcp = FastMCP("small")


@mcp.tool(name="draw")
def draw_line(values: list[float]) -> str:
    """Draw a line."""
    figure = Figure()
    figure.add_subplot().plot(values)
    figure.savefig("line.png")  # expect: write-without-username
    return "line.png"
