"""Permissions of the page, asked for by the tool."""

from fastmcp import FastMCP
from fastmcp.apps import AppConfig, ResourcePermissions

mcp = FastMCP("prices")


@mcp.tool(
    app=AppConfig(
        resource_uri="ui://widget/chart.html",
        visibility=["model"],
        permissions=ResourcePermissions(camera={}),  # expect: widget-csp-on-tool
    )
)
def show() -> dict[str, bool]:
    """Show a chart."""
    return {"chart": True}
