"""Requests a server in every turn of a comprehension."""

import urllib.request

from fastmcp import FastMCP

mcp = FastMCP("small")


@mcp.tool
def sizes(addresses: list[str]) -> list[int]:
    """Return how long some pages are."""
    return [len(urllib.request.urlopen(address).read()) for address in addresses]  # expect: silent-loop
