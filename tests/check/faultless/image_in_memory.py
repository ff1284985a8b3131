"""After FastMCP's screenshot example (Apache-2.0), rewritten. The image never touches the disk."""

import io

from fastmcp import FastMCP
from fastmcp.utilities.types import Image
from PIL import Image as Pillow

mcp = FastMCP("Square")


@mcp.tool
def square(size: int) -> Image:
    """Return a picture of a square."""
    buffer = io.BytesIO()
    picture = Pillow.new("RGB", (size, size))
    picture.convert("RGB").save(buffer, format="JPEG", quality=60, optimize=True)
    return Image(data=buffer.getvalue(), format="jpeg")
