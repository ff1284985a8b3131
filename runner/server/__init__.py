"""The MCP server of tool files, over HTTP and stdio."""
