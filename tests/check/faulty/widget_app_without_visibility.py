"""The same, by FastMCP's own way to say it."""

from fastmcp import FastMCP
from fastmcp.apps import AppConfig

mcp = FastMCP("prices")


@mcp.tool(app=AppConfig(resource_uri="ui://widget/chart.html"))  # expect: widget-visibility
def show() -> dict[str, bool]:
    """Show a chart."""
    return {"chart": True}
