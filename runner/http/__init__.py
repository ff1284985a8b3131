"""What the HTTP server offers beside MCP, and the checks in front: who comes, how often, with how much."""
