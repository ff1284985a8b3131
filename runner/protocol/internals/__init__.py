"""Private names of FastMCP and the MCP SDK that the host uses, each with its reason."""
