"""MCP for both front ends: lines, sessions, direct answers, resources and tools over artifacts."""
