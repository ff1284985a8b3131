"""Read a table of sales, however long, and write a chart and a report.

    runner call sample_tools/sales_report.py sales_report filename=@sample_tools/data/sales.csv

It reads in chunks, so its memory does not grow with the file, and tells how far it is, so it may take long.
The table needs the columns date, region, product and revenue.
"""

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

mcp = FastMCP("sales-report")

COLUMNS = ["date", "region", "product", "revenue"]
ROWS_AT_ONCE = 20_000


@mcp.tool
async def sales_report(filename: str, username: str, ctx: Context) -> dict[str, Any]:
    """Sum up a CSV of sales by month, region and product, with a chart and an HTML report.

    Args:
        filename: A CSV file with the columns date, region, product and revenue.
        username: Filled in by the server.
        ctx: Filled in by the server.
    """
    await ctx.info(f"Reading {Path(filename).name}")
    rows, sales = await read_sales(filename, ctx)
    by = {name: sales.groupby(name)["revenue"].sum() for name in ("month", "region", "product")}

    home = Path(f"/tmp/{username}")
    draw_chart(by["month"], home / "revenue_by_month.png")
    (home / "sales_report.html").write_text(report_page(rows, by), encoding="utf-8")

    return {
        "results": {
            "rows": rows,
            "revenue": round(float(sales["revenue"].sum()), 2),
            "best_month": str(by["month"].idxmax()),
            "revenue_by_region": {str(name): round(float(value), 2) for name, value in by["region"].items()},
            "top_products": [str(name) for name in by["product"].nlargest(3).index],
        },
        "artifacts": [
            {
                "name": "sales_report.html",
                "path": str(home / "sales_report.html"),
                "mime": "text/html",
                "description": "Revenue by month, region and product",
                "category": "report",
                "viewer": "html",
                "auto_open": True,
            },
            {
                "name": "revenue_by_month.png",
                "path": str(home / "revenue_by_month.png"),
                "mime": "image/png",
                "description": "Revenue by month",
                "category": "visualization",
                "viewer": "image",
                "auto_open": False,
            },
        ],
        "display": {"open_canvas": True, "primary_file": "sales_report.html", "mode": "replace"},
        "meta_data": {"rows_at_once": ROWS_AT_ONCE, "columns": COLUMNS},
    }


async def read_sales(filename: str, ctx: Context) -> tuple[int, pd.DataFrame]:
    """Return the number of rows, and the revenue by month, region and product."""
    rows, parts = 0, []
    for chunk, done, size in chunks(filename):
        rows += len(chunk)
        parts.append(sum_up(chunk.assign(month=chunk["date"].str.slice(0, 7))))
        await ctx.report_progress(done, size, f"{rows:,} rows read")
    return rows, sum_up(pd.concat(parts))


def chunks(filename: str) -> Iterator[tuple[pd.DataFrame, int, int]]:
    """Yield the table piece by piece, with the bytes read so far and the bytes in all."""
    size = Path(filename).stat().st_size
    with open(filename, "rb") as file:
        for chunk in pd.read_csv(file, chunksize=ROWS_AT_ONCE):
            if missing := [name for name in COLUMNS if name not in chunk]:
                raise ToolError(f"The table has no column {', '.join(missing)}; it has {', '.join(chunk)}.")
            yield chunk, file.tell(), size


def sum_up(sales: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each month, region and product."""
    return sales.groupby(["month", "region", "product"], as_index=False)["revenue"].sum()


def draw_chart(revenue: "pd.Series[float]", target: Path) -> None:
    """Write a bar chart of the months as PNG."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.bar(revenue.index, revenue / 1000)
    axes.set_title("Revenue by month, thousands")
    axes.tick_params(axis="x", rotation=90)
    figure.savefig(target, dpi=110)


def report_page(rows: int, by: dict[str, "pd.Series[float]"]) -> str:
    """Return the report as one HTML page. What stands in the table is data: it is escaped."""
    tables = []
    for title, values in by.items():
        lines = "".join(f"<tr><td>{escape(str(k))}<td align=right>{v:,.2f}" for k, v in values.items())
        tables.append(f"<h2>Revenue by {title}</h2><table>{lines}</table>")
    heading = f"<h1>Sales report</h1><p>{rows:,} sales</p>"
    return f"<!doctype html><meta charset=utf-8><title>Sales report</title>{heading}{''.join(tables)}"
