"""What the HTTP server offers beside MCP: health, downloads, and the checks in front of all of it."""
