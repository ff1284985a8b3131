"""A result by the contract, with its files and its older spelling."""

from pathlib import Path
from typing import Any

from fastmcp import FastMCP

mcp = FastMCP("Contract")


@mcp.tool
def report(title: str, username: str) -> dict[str, Any]:
    """Write a report."""
    home = Path("/tmp") / username
    target = home / "reports" / f"{title}.html"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f"<h1>{title}</h1>", encoding="utf-8")
    answer: dict[str, Any] = {"meta-data": {"elapsed_ms": 3}, "display": {"open_canvas": True}}
    answer["results"] = {"title": title}
    answer["artifacts"] = [{"name": target.name, "path": str(target), "mime": "text/html"}]
    return answer
