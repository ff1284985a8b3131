"""Fills a pool of threads while it is imported, in a function."""

from concurrent.futures import ThreadPoolExecutor

from fastmcp import FastMCP

mcp = FastMCP("small")


def warm_up() -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(2)
    pool.submit(sum, range(10))
    return pool


POOL = warm_up()  # expect: threads-at-import


@mcp.tool
def shout(text: str) -> str:
    """Return text in capitals."""
    return text.upper()
