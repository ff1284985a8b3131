"""MCP as both front ends speak it: lines, sessions, direct answers, resources and tools over artifacts."""
