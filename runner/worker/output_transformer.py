"""A tool file's own `output_transformer`: the author's final change to the results of the file's tools.

    async def output_transformer(tool_name, result, ctx):
        if tool_name != "export":
            return None
        ref = await ctx.artifacts.put_bytes(result["pdf"], mime_type="application/pdf")
        return {"artifact": ref.model_dump(), "summary": "The export is ready"}

It runs in the worker, confined and within the call's time, like the tool. None means that it does not
handle this result; if it raises, the result stays unchanged and the client gets a warning.

Source: document 004, section 3.6; requirements S4-39 and S4-66; contradiction C24.
"""

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.tools import ToolResult
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp_types import TextContent
from pydantic_core import to_json, to_jsonable_python

from runner.author import Artifacts, artifacts
from runner.contract.payload import payload_of, with_payload
from runner.worker.wire import SENT_MAX_CHARS

__all__ = ["NAME", "ToolContext", "ToolTransformer"]

NAME = "output_transformer"
"""Name of the function in a tool file."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Context of the function.

    Attributes:
        artifacts: Keeps bytes and text for the user, see `runner.author`.
        tool: Name of the tool.
        server: Always None, for the file's own server.
    """

    artifacts: Artifacts
    tool: str
    server: str | None = None


class ToolTransformer(Middleware):
    """Middleware that passes the results of a file's tools to the file's function."""

    def __init__(self, function: Callable[[str, Any, ToolContext], Any]) -> None:
        self._function = function

    async def on_call_tool(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        """Run the tool, then the function on its result; errors pass through."""
        result = await call_next(context)
        if not isinstance(result, ToolResult) or result.is_error:
            return result
        wire = {
            "content": [block.model_dump(mode="json", by_alias=True) for block in result.content],
            "structuredContent": result.structured_content,
        }
        tool = context.message.name
        try:
            made = self._function(tool, payload_of(wire), ToolContext(artifacts, tool))
            made = await made if inspect.isawaitable(made) else made
            return result if made is None else _result(result, wire, made)
        except Exception as error:  # noqa: BLE001 - the author's code; its failure must not lose the result
            text = f"{NAME} failed, the result stays as it is: {type(error).__name__}: {error}"
            await _warn(context, text[:SENT_MAX_CHARS])
            return result


async def _warn(context: MiddlewareContext[Any], text: str) -> None:
    if context.fastmcp_context is None:
        return
    with warnings.catch_warnings():
        # Log messages to clients are deprecated in the protocol, but still the only way to warn.
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        await context.fastmcp_context.warning(text)


def _result(was: ToolResult, wire: dict[str, Any], made: Any) -> ToolResult:
    value = to_jsonable_python(made, bytes_mode="base64")
    text = value if isinstance(value, str) else to_json(value).decode()
    message = with_payload(wire, value, text=text)
    content = [TextContent(type="text", text=text)]
    return ToolResult(content, message.get("structuredContent"), was.meta)
