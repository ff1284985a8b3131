"""Private names of FastMCP and the MCP SDK around the endpoint over HTTP, each with its reason."""
