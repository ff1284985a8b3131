"""A page that takes its script from a host that its policy does not name."""

from fastmcp import FastMCP

from runner.widgets import Csp, Widget, add_widgets

mcp = FastMCP("prices")
PAGE = '<!doctype html><script src="https://cdn.example.com/chart.js"></script>'
chart = Widget(
    name="chart",
    html=PAGE,  # expect: widget-remote-code
    description="A chart",
    csp=Csp(resources=("cdn.example.org",)),
)
add_widgets(mcp, [chart])


@mcp.tool(meta=chart.tool_meta(invoking="Drawing...", invoked="Chart ready"))
def show() -> dict[str, bool]:
    """Show a chart."""
    return {"chart": True}
