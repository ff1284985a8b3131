"""A function `output_transformer` that decides what a model reads of a tool's result.

    runner call sample_tools/transformer.py stock rows=20000

`stock` returns a table as text, as it would for a program. The function below keeps it as a file of the
user, and a model reads where it is and how it begins. `None` leaves a result as it is.
"""

from typing import Any

from fastmcp import FastMCP

mcp = FastMCP("transformer")


@mcp.tool
def stock(rows: int, username: str) -> dict[str, Any]:
    """Return what is in stock, as CSV.

    Args:
        rows: How many articles.
        username: Filled in by the server; with it the call has a place for files.
    """
    lines = ["article,pieces", *(f"A{number:05},{number % 97}" for number in range(rows))]
    return {"results": {"csv": "\n".join(lines)}}


@mcp.tool
def articles(rows: int) -> dict[str, Any]:
    """Return how many articles there are."""
    return {"results": {"articles": rows}}


async def output_transformer(tool_name: str, result: Any, ctx: Any) -> Any:
    """Keep the table of `stock` as a file, and hand on a reference to it with its first lines."""
    if tool_name != "stock":
        return None
    table = result["results"]["csv"]
    ref = await ctx.artifacts.put_text(table, mime_type="text/csv", filename="stock.csv")
    return {"results": {"table": ref.model_dump(), "begins": table.splitlines()[:3]}}
