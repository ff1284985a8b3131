"""Uses of undocumented modules of the MCP SDK, for the login in the Playground."""
