"""A tool that returns pictures as they were given to it."""

import base64

from fastmcp import FastMCP
from fastmcp.utilities.types import Image

mcp = FastMCP("pictures")


@mcp.tool
def show(pictures: list[str], kind: str) -> list[Image]:
    return [Image(data=base64.b64decode(picture), format=kind) for picture in pictures]
