"""Polls until something is ready; logging does not count as progress."""

import asyncio
import logging
from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("small")


log = logging.getLogger(__name__)


@mcp.tool
async def wait_for(name: str) -> str:
    """Wait until a file is there."""
    while not Path(name).exists():  # expect: silent-loop
        log.info("waiting")
        await asyncio.sleep(1)
    return name
