"""Widgets as hosts want them, by `runner.widgets` and by hand."""

from fastmcp import FastMCP
from fastmcp.apps import AppConfig

from runner.widgets import Csp, Widget, add_widgets

mcp = FastMCP("prices")
PAGE = '<!doctype html><script src="https://cdn.example.com/chart.js"></script><p>A chart</p>'
CDN = ("*.example.com",)
chart = Widget(name="chart", html=PAGE, description="A chart", csp=Csp(resources=CDN))
add_widgets(mcp, [chart])
SAID = {"visibility": ["model", "app"]}


@mcp.tool(meta=chart.tool_meta(invoking="Drawing...", invoked="Chart ready"))
def show() -> dict[str, bool]:
    """Show a chart."""
    return {"chart": True}


@mcp.tool(
    meta={"ui": {"resourceUri": "ui://by-hand/table.html", **SAID}, "openai/outputTemplate": "ui://sky"}
)
def table() -> dict[str, bool]:
    """Show a table."""
    return {"table": True}


@mcp.tool(app=AppConfig(resource_uri="ui://by-hand/table.html", visibility=["app"]))
def again() -> dict[str, bool]:
    """Show the table again."""
    return {"table": True}


@mcp.resource("ui://by-hand/table.html")
def table_page() -> str:
    return '<style>p { background: url("data:image/gif;base64,R0lGODlhAQABAAAAACw=") }</style><p>A table</p>'


@mcp.resource("ui://sky", mime_type="text/html+skybridge")
def sky() -> str:
    return "<a href='https://example.org/'>A link is not loaded</a>"
