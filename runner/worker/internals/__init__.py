"""Private names of FastMCP and the MCP SDK that a worker uses, each with its reason."""
