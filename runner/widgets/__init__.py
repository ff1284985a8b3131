"""Widgets for tool files: pages that hosts show beside results of tools, declared once for every host.

    from fastmcp import FastMCP
    from runner.widgets import Csp, Widget, add_widgets

    mcp = FastMCP("prices")
    chart = Widget(
        name="price-chart",
        html=Path(__file__).parent / "chart.html",
        description="A line chart of prices",
        csp=Csp(resources=("cdn.example.com",)),
    )

    @mcp.tool(meta=chart.tool_meta(invoking="Drawing...", invoked="Chart ready"))
    def show_prices(product: str) -> Prices: ...

    add_widgets(mcp, [chart])

It imports no module of the host. Source: `docs/widgets.md`; document 003.
"""

# The only module that authors import from; it stays small.
from runner.contract.login_challenge import NO_AUTH, oauth2
from runner.widgets.builtin import BUILTIN, builtin
from runner.widgets.login_result import auth_required
from runner.widgets.registration import add_widgets
from runner.widgets.widget import Csp, Widget

__all__ = ["BUILTIN", "NO_AUTH", "Csp", "Widget", "add_widgets", "auth_required", "builtin", "oauth2"]
