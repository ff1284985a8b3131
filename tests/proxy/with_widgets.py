"""An MCP server whose tools say in every way whether widgets may call them; each call leaves a mark."""

import sys
from pathlib import Path
from typing import Any

from fastmcp import FastMCP
from mcp_types import ToolAnnotations

APP = {"ui": {"visibility": ["model", "app"]}}
READS = ToolAnnotations(read_only_hint=True)
ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False)

TOOLS: dict[str, dict[str, Any]] = {
    "says_nothing": {"annotations": READS},
    "for_models": {"annotations": READS, "meta": {"ui": {"visibility": ["model"]}}},
    "for_nobody": {"annotations": READS, "meta": {"ui": {"visibility": []}}},
    "odd": {"annotations": READS, "meta": {"ui": {"visibility": "app"}}},
    "reads": {"annotations": READS, "meta": APP},
    "adds": {"annotations": ADDS, "meta": APP},
    "for_chatgpt": {"annotations": READS, "meta": {"openai/widgetAccessible": True}},
    "hints_nothing": {"meta": APP},
    "destroys": {"annotations": ToolAnnotations(destructive_hint=True), "meta": APP},
}


def made(name: str, marks: Path) -> Any:
    def act() -> str:
        (marks / name).touch()
        return f"{name} was called"

    act.__name__ = name
    return act


mcp = FastMCP("widgets")
for name, options in TOOLS.items():
    mcp.tool(made(name, Path(sys.argv[2])), name=name, **options)

if __name__ == "__main__":
    mcp.run("http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
