"""Run tool files: serve them over MCP, call them from a shell, one confined process per call."""
