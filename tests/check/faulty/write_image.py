"""Saves an image by its method `save`."""

from fastmcp import FastMCP
from PIL import Image

mcp = FastMCP("small")


@mcp.tool
def square(size: int) -> str:
    """Draw a square."""
    target = f"square_{size}.png"
    Image.new("RGB", (size, size)).save(target)  # expect: write-without-username
    return target
