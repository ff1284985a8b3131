"""`runner proxy`: other MCP servers, with the output guard in front of them."""
