"""Five tools that only show something: a chat, search results, a table, a demonstration, a dashboard.

    runner serve sample_tools/chatui.py

Each returns data, and a host that knows widgets shows them in one of the runner's own pages.

Source: requirements S3-1 to S3-86, S3-117, S3-120, S3-122 and S3-144 to S3-153.
"""

from datetime import UTC, datetime
from typing import Any

from fastmcp import Context, FastMCP
from fastmcp.tools import ToolResult
from mcp_types import ToolAnnotations

from runner.widgets import BUILTIN, Csp, add_widgets, builtin
from runner.widgets.forms import Chat, Dashboard, Demo, Form, SearchResult, SearchResults, Stat, Table

# Strict: a boolean is not a number, and a number is not text.
mcp = FastMCP("chatui", version="1.0.0", strict_input_validation=True)

CSP = Csp(resources=("web-sandbox.oaiusercontent.com",))
WIDGETS = {name: builtin(name, csp=CSP) for name in BUILTIN}
add_widgets(mcp, WIDGETS.values())

CHAT = (
    "Use this when the user wants a conversation-style interaction or needs a dedicated chat view. "
    "This tool only renders a UI and does not modify external data."
)
SEARCH = (
    "Use this when presenting multiple search results or recommendations the user needs to scan. "
    "This tool only renders results and does not perform searches."
)
TABLE = "Use this when presenting structured tabular data (comparisons, schedules, lists)."
DEMO = "Use this for testing or demonstrating the widget system (kitchen-sink widget). Read-only."
DASHBOARD = (
    "Use this when the user wants a dashboard-style overview. "
    "This tool only renders a UI and does not modify external data."
)


def shown_by(widget: str, form: type[Form], *, invoking: str, invoked: str) -> dict[str, Any]:
    """Return what to register a tool with whose output a widget shows."""
    hints = ToolAnnotations(
        read_only_hint=True, destructive_hint=False, open_world_hint=False, idempotent_hint=True
    )
    meta = WIDGETS[widget].tool_meta(invoking=invoking, invoked=invoked)
    return {"meta": meta, "annotations": hints, "output_schema": form.output_schema()}


def argument_of(ctx: Context, key: str, kind: type) -> Any:
    """Return what the host says of its user in the request's `_meta`, or None."""
    meta = ctx.request_context.meta if ctx.request_context else None
    value = (meta or {}).get(f"openai/{key}")
    return value if isinstance(value, kind) else None


def locale_of(ctx: Context) -> str:
    """Return the language of the user."""
    return argument_of(ctx, "locale", str) or "en"


def known(**facts: Any) -> dict[str, Any]:
    """Return the facts that are known."""
    return {name: fact for name, fact in facts.items() if fact is not None}


def counted(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@mcp.tool(
    description=CHAT,
    **shown_by("chat-view", Chat, invoking="Opening chat interface...", invoked="Chat interface ready"),
)
async def display_chat(ctx: Context, seedMessage: str = "") -> ToolResult:  # noqa: N803
    """Open a chat, perhaps with a first message."""
    text = "Chat interface opened" + (f' with the message "{seedMessage}"' if seedMessage else "")
    client = known(
        userAgent=argument_of(ctx, "userAgent", str), location=argument_of(ctx, "userLocation", dict)
    )
    chat = Chat(seed_message=seedMessage, locale=locale_of(ctx))
    return ToolResult(text, chat.content(), meta={"clientInfo": client})


@mcp.tool(
    description=SEARCH,
    **shown_by(
        "search-results",
        SearchResults,
        invoking="Preparing search results...",
        invoked="Search results displayed",
    ),
)
async def display_search_results(ctx: Context, query: str, results: list[SearchResult]) -> ToolResult:
    """Show what was found."""
    text = f'{counted(len(results), "result")} for "{query}"'
    search = known(location=argument_of(ctx, "userLocation", dict), timestamp=datetime.now(UTC).isoformat())
    found = SearchResults(query=query, results=results, locale=locale_of(ctx))
    return ToolResult(text, found.content(), meta={"searchContext": search})


@mcp.tool(
    description=TABLE,
    **shown_by("pizzaz-table", Table, invoking="Preparing table...", invoked="Table displayed"),
)
async def display_table(
    ctx: Context, columns: list[str], rows: list[dict[str, Any]], title: str = ""
) -> ToolResult:
    """Show rows in columns."""
    text = (f'Table "{title}"' if title else "Table") + f" with {counted(len(rows), 'row')}"
    named = {"title": title} if title else {}
    table = Table(columns=columns, data=rows, locale=locale_of(ctx), **named)
    context = {"generatedAt": datetime.now(UTC).isoformat()}
    return ToolResult(text, table.content(), meta={"tableContext": context})


@mcp.tool(
    description=DEMO,
    **shown_by("kitchen-sink-lite", Demo, invoking="Loading demo...", invoked="Demo widget ready"),
)
async def display_demo() -> ToolResult:
    """Show what a widget can do."""
    return ToolResult("Demo widget displayed", Demo(demo=True).content())


@mcp.tool(
    description=DASHBOARD,
    **shown_by("dashboard-widget", Dashboard, invoking="Opening dashboard...", invoked="Dashboard ready"),
)
async def display_dashboard() -> ToolResult:
    """Show what this server has."""
    tools = await mcp.list_tools()
    stats = [
        Stat(label="Tools", value=str(len(tools)), change="all of them only show"),
        Stat(label="Widgets", value=str(len(WIDGETS)), change="each in two dialects"),
    ]
    board = Dashboard(dashboard=True, header_text=mcp.name, stats=stats)
    return ToolResult("Dashboard displayed", board.content())
