"""A page with the media type of every web page, which no host of widgets shows."""

from fastmcp import FastMCP

mcp = FastMCP("prices")


@mcp.resource("ui://widget/chart.html", mime_type="text/html")  # expect: widget-mime
def chart() -> str:
    return "<!doctype html><p>A chart</p>"
