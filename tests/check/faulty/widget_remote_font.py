"""A page whose style sheet fetches a font."""

from fastmcp import FastMCP

mcp = FastMCP("prices")


@mcp.resource("ui://widget/chart.html")
def chart() -> str:
    return "<style>@import url(https://fonts.example.com/a);</style><p>A</p>"  # expect: widget-remote-code
