"""After FastMCP's examples of tools with names and descriptions (Apache-2.0), rewritten."""

from typing import Annotated

from fastmcp import FastMCP
from pydantic import BaseModel, Field

mcp = FastMCP("Described")


class Point(BaseModel):
    x: float
    y: float


@mcp.tool(name="midpoint", description="Return the point in the middle of two others.", tags={"math"})
def middle(one: Point, other: Point) -> Point:
    return Point(x=(one.x + other.x) / 2, y=(one.y + other.y) / 2)


@mcp.tool("scale")
def scaled(point: Point, factor: Annotated[float, Field(gt=0, description="by how much")] = 2.0) -> Point:
    """Return a point further out."""
    return Point(x=point.x * factor, y=point.y * factor)
