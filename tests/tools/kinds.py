"""A tool of every kind of return value, for comparison with plain FastMCP."""

import base64
import contextlib
import dataclasses
import datetime
import enum
import uuid
from pathlib import Path
from typing import Any, Literal

from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.tools import ToolResult
from fastmcp.utilities.types import Audio, File, Image
from mcp_types import (
    BlobResourceContents,
    EmbeddedResource,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from pydantic import BaseModel
from typing_extensions import TypedDict

mcp = FastMCP("kinds")
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Color(enum.Enum):
    RED = "red"


class Place(BaseModel):
    path: str = "/x"
    n: int = 1


@dataclasses.dataclass
class Point:
    x: int
    y: int


class TD(TypedDict):
    a: int
    b: str


@mcp.tool
def t_int() -> int:
    return 3


@mcp.tool
def t_float() -> float:
    return 2.5


@mcp.tool
def t_bool() -> bool:
    return True


@mcp.tool
def t_none() -> None:
    return None


@mcp.tool
def t_str() -> str:
    return "hello"


@mcp.tool
def t_str_empty() -> str:
    return ""


@mcp.tool
def t_str_json() -> str:
    return '{"a": 1}'


@mcp.tool
def t_str_contractlike() -> str:
    return '{"status": "ok", "n": [1,2]}'


@mcp.tool
def t_bytes() -> bytes:
    return b"abc"


@mcp.tool
def t_list() -> list[int]:
    return [1, 2]


@mcp.tool
def t_list_any() -> list:
    return [1, "a", {"b": 2}]


@mcp.tool
def t_list_dict() -> list[dict]:
    return [{"a": 1}, {"a": 2}]


@mcp.tool
def t_tuple() -> tuple[int, str]:
    return (1, "a")


@mcp.tool
def t_set() -> set[int]:
    return {1}


@mcp.tool
def t_dict() -> dict:
    return {"a": 1, "nested": {"b": [1, 2]}}


@mcp.tool
def t_dict_any() -> dict[str, Any]:
    return {"a": 1}


@mcp.tool
def t_dict_int() -> dict[str, int]:
    return {"a": 1}


@mcp.tool
def t_model() -> Place:
    return Place()


@mcp.tool
def t_dataclass() -> Point:
    return Point(1, 2)


@mcp.tool
def t_typeddict() -> TD:
    return {"a": 1, "b": "x"}


@mcp.tool
def t_optional() -> int | None:
    return None


@mcp.tool
def t_union() -> int | str:
    return "u"


@mcp.tool
def t_literal() -> Literal["a", "b"]:
    return "a"


@mcp.tool
def t_enum() -> Color:
    return Color.RED


@mcp.tool
def t_any() -> Any:
    return {"x": 1}


@mcp.tool
def t_datetime() -> datetime.datetime:
    return datetime.datetime(2020, 1, 1)


@mcp.tool
def t_uuid() -> uuid.UUID:
    return uuid.UUID(int=5)


@mcp.tool
def u_int():
    return 3


@mcp.tool
def u_str():
    return "hello"


@mcp.tool
def u_str_json():
    return '{"a": 1}'


@mcp.tool
def u_dict():
    return {"a": 1}


@mcp.tool
def u_dict_result():
    return {"result": 1}


@mcp.tool
def u_dict_resultx():
    return {"result": 1, "other": 2}


@mcp.tool
def u_list():
    return [1, 2]


@mcp.tool
def u_list_str():
    return ["a", "b"]


@mcp.tool
def u_none():
    return None


@mcp.tool
def u_model():
    return Place()


@mcp.tool
def u_nested_unicode():
    return {"ü": "ä€", "n": 1.0}


@mcp.tool
def u_path():
    return {"path": "/tmp/x/y", "b64": "aGk="}


@mcp.tool
def u_image():
    return Image(data=PNG, format="png")


@mcp.tool
def t_image() -> Image:
    return Image(data=PNG, format="png")


@mcp.tool
def u_audio():
    return Audio(data=b"RIFF1234", format="wav")


@mcp.tool
def u_file():
    return File(data=b"hello", name="a.txt", format="txt")


@mcp.tool
def u_mixed():
    return ["text", Image(data=PNG, format="png"), {"a": 1}]


@mcp.tool
def u_text_content():
    return TextContent(type="text", text="plain", annotations={"audience": ["user"]})


@mcp.tool
def u_two_texts():
    return [TextContent(type="text", text="one"), TextContent(type="text", text='{"two": 2}')]


@mcp.tool
def u_link():
    return ResourceLink(type="resource_link", uri="https://e.com/x", name="x")


@mcp.tool
def u_embedded():
    return EmbeddedResource(
        type="resource", resource=TextResourceContents(uri="x://y", text="emb", mime_type="text/plain")
    )


@mcp.tool
def u_embedded_blob():
    return EmbeddedResource(
        type="resource",
        resource=BlobResourceContents(uri="x://y.bin", blob="aGk=", mime_type="application/octet-stream"),
    )


@mcp.tool
def r_both():
    return ToolResult(content="for the model", structured_content={"rows": [1, 2]}, meta={"mine": {"k": 1}})


@mcp.tool
def r_structured():
    return ToolResult(structured_content={"rows": [1, 2]})


@mcp.tool
def r_content():
    return ToolResult(content=[TextContent(type="text", text="a"), TextContent(type="text", text="b")])


@mcp.tool
def r_differs():
    return ToolResult(content='{"a": 1}', structured_content={"b": 2})


@mcp.tool
def r_empty():
    return ToolResult(content=[])


@mcp.tool(output_schema={"type": "object", "additionalProperties": True})
def s_loose():
    return {"a": 1}


@mcp.tool(output_schema={"type": "object", "properties": {"a": {"type": "integer"}}})
def s_closed():
    return {"a": 1}


@mcp.tool(output_schema={"type": "object"})
def s_loose_result():
    return ToolResult(content="see widget", structured_content={"a": [1]}, meta={"ui": 1})


@mcp.tool(output_schema=None)
def s_none() -> dict:
    return {"a": 1}


@mcp.tool
def d_denied() -> dict:
    with contextlib.suppress(OSError):
        Path("/nowhere/else").write_text("x")
    with contextlib.suppress(OSError):
        Path("/nowhere/forbidden").write_text("x")
    return {"a": 1}


@mcp.tool
def d_denied_str():
    with contextlib.suppress(OSError):
        Path("/nowhere/forbidden").write_text("x")
    return "fine"


@mcp.tool
def e_tool_error_raised():
    raise ToolError("the author says no")


@mcp.tool
def e_value_raised():
    raise ValueError("bad value 7")


@mcp.tool
def e_key_raised():
    return {}["missing"]


@mcp.tool
def e_result():
    return ToolResult(content="failed softly", is_error=True)


@mcp.tool
def e_result_structured():
    return ToolResult(content="failed softly", structured_content={"why": "x"}, is_error=True)


@mcp.tool
def e_wrapped_raised():
    try:
        Path("/nowhere/forbidden.txt").write_text("x")
    except OSError as error:
        raise ToolError("could not save the report") from error


@mcp.tool
def a_args(x: int, y: str = "d") -> dict:
    return {"x": x, "y": y}


@mcp.tool
async def c_ctx(ctx: Context) -> dict:
    await ctx.info("hello")
    return {"id": bool(ctx.request_id)}


@mcp.tool
def big() -> dict:
    return {"rows": list(range(20))}
