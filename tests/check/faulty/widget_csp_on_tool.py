"""A content security policy on the tool, where nobody reads it."""

from fastmcp import FastMCP

mcp = FastMCP("prices")
UI = {
    "resourceUri": "ui://widget/chart.html",
    "visibility": ["model"],
    "csp": {"connectDomains": ["https://prices.example.com"]},  # expect: widget-csp-on-tool
}


@mcp.tool(meta={"ui": UI})
def show() -> dict[str, bool]:
    """Show a chart."""
    return {"chart": True}
