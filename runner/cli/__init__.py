"""The command `runner`: options read from the shell, reports written to it."""

import os

# Set before FastMCP is imported, which would read settings from `.env` of the current folder.
os.environ.setdefault("FASTMCP_ENV_FILE", os.devnull)
