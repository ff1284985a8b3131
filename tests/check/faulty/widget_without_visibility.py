"""A tool that does not say whether its page may call it."""

from fastmcp import FastMCP

mcp = FastMCP("prices")


@mcp.tool(meta={"ui": {"resourceUri": "ui://widget/chart.html"}})  # expect: widget-visibility
def show() -> dict[str, bool]:
    """Show a chart."""
    return {"chart": True}
