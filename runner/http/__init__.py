"""HTTP routes beside MCP, and the checks in front: identity, rate, size."""
