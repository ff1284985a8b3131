"""Speed and memory of sandboxed calls beside plain FastMCP; `scripts/bench` runs it."""
