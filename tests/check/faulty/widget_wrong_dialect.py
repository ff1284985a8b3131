"""A page that a tool names in the dialect of ChatGPT, served in the other one."""

from fastmcp import FastMCP

mcp = FastMCP("prices")
META = {"openai/outputTemplate": "ui://widget/chart.html"}
APP = "text/html;profile=mcp-app"


@mcp.tool(meta=META)
def show() -> dict[str, bool]:
    """Show a chart."""
    return {"chart": True}


@mcp.resource("ui://widget/chart.html", mime_type=APP)  # expect: widget-mime
def chart() -> str:
    return "<!doctype html><p>A chart</p>"
