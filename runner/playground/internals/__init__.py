"""Modules of the MCP SDK that it does not document, for the login in the Playground."""
