"""What the HTTP server offers beside MCP: files, links, events, sessions, health; the checks in front."""
