"""An MCP server of somebody else, which stands behind the proxy under two names."""

import sys
from typing import Any

from fastmcp import FastMCP
from mcp_types import ToolAnnotations

NAME = sys.argv[1]
WHO = "ui://widget/who.html"
PAGE = """<!doctype html><html lang="en"><title>Who</title><h1>The widget of NAME</h1><ol></ol><script>
const say = message => parent.postMessage({jsonrpc: "2.0", ...message}, "*");
const asked = {2: "own", 3: "other"};
addEventListener("message", ({data: {id, result, error}}) => {
  if (!asked[id]) return;
  const line = document.createElement("li");
  line.textContent = asked[id] + ": " + (error ? error.message : result.content[0].text);
  document.querySelector("ol").append(line);
});
say({id: 1, method: "ui/initialize", params: {appInfo: {name: "who", version: "1"}, appCapabilities: {},
  protocolVersion: "2026-01-26"}});
say({method: "ui/notifications/initialized", params: {}});
say({id: 2, method: "tools/call", params: {name: "whoami", arguments: {loud: true}}});
say({id: 3, method: "tools/call", params: {name: "OTHER_whoami", arguments: {}}});
</script></html>""".replace("NAME", NAME).replace("OTHER", "beta" if NAME == "alpha" else "alpha")

mcp = FastMCP(NAME)


@mcp.resource("notes://today")
def today() -> str:
    """Current events."""
    return f"{NAME} says hello"


@mcp.resource("notes://of/{day}")
def of(day: str) -> str:
    """Past events."""
    return f"{NAME} remembers {day}"


@mcp.resource("notes://lines/{day}{?first,last}")
def lines(day: str, first: str = "1", last: str = "9") -> str:
    """Some lines of what went on."""
    return f"{NAME} remembers lines {first} to {last} of {day}"


@mcp.resource(WHO, mime_type="text/html;profile=mcp-app")
def page() -> str:
    """The widget."""
    return PAGE


@mcp.tool(meta={"ui": {"resourceUri": WHO, "visibility": ["model", "app"]}})
def show() -> dict[str, Any]:
    """Show who is there."""
    return {"shown": NAME}


@mcp.tool(annotations=ToolAnnotations(read_only_hint=True), meta={"ui": {"visibility": ["model", "app"]}})
def whoami(loud: bool = False) -> str:
    """Return the name of the server."""
    return NAME.upper() if loud else NAME


if __name__ == "__main__":
    mcp.run(show_banner=False)
