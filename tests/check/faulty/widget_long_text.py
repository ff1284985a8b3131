"""A text for the time while a tool runs that no host has room for."""

from fastmcp import FastMCP

mcp = FastMCP("prices")
LONG = "Drawing the chart of all the prices that were found in the files you gave me"


@mcp.tool(
    meta={
        "openai/outputTemplate": "ui://widget/chart.html",
        "openai/toolInvocation/invoking": LONG,  # expect: widget-invocation-text
        "openai/toolInvocation/invoked": "Chart ready",
    }
)
def show() -> dict[str, bool]:
    """Show a chart."""
    return {"chart": True}
