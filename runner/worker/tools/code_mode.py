"""Tool file of code mode: FastMCP's `search`, `get_schema` and `execute` over the tools of the host.

Code runs in this process, which is confined, serves one user and ends with the call. Its `call_tool` sends a
request to the host, which runs it as a call of that user.

Source: FastMCP, "Code Mode"; `runner/server/code_mode.py`, the other half.
"""

import ast
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastmcp import FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.experimental.transforms.code_mode import CodeMode
from fastmcp.server.providers import Provider
from fastmcp.tools import Tool
from mcp.shared.exceptions import MCPError

from runner.worker.call_scope import current
from sandbox.denials.recognise import behind

__all__ = ["mcp"]

_SOURCE = "<code>"
_ABOUT = (
    "Run Python code in a sandbox: CPython with its standard library and the installed packages, files in "
    "the working directory, no network.\n"
    "`await call_tool(name, arguments)` calls a tool and returns its structured content, else its text; it "
    "raises ToolError if the tool fails.\n"
    "Chain calls in one block, keep what lies between them in variables, and `return` the answer."
)


class HostTools(Provider):
    """Provider of the host's tools, from the list for the user of the call."""

    async def list_tools(self) -> Sequence[Tool]:
        """Return them; none while the file is loaded."""
        scope = current()
        if scope is None:
            # The file is being loaded.
            return []
        try:
            listed = await scope.line.request("tools/list", {})
        except MCPError as error:
            raise ToolError(f"the tools cannot be listed: {error.error.message}") from error
        return [_tool(tool) for tool in listed["tools"]]


def _tool(tool: Mapping[str, Any]) -> Tool:
    meta = tool.get("_meta") or {}
    tags = (meta.get("fastmcp") or {}).get("tags") or ()
    return Tool(
        name=tool["name"],
        description=tool.get("description"),
        parameters=tool["inputSchema"],
        output_schema=tool.get("outputSchema"),
        meta=meta,
        tags=set(tags),
    )


class ThisProcess:
    """A `SandboxProvider` of FastMCP that runs code in this process."""

    async def run(
        self,
        code: str,
        *,
        inputs: dict[str, Any] | None = None,
        external_functions: dict[str, Callable[..., Any]] | None = None,
    ) -> Any:
        """Run code as the body of an async function, and return what it returns."""
        try:
            body = ast.parse(code, _SOURCE).body or [ast.Pass()]
            module = ast.parse("async def __code__(): pass", _SOURCE)
            module.body[0].body = body  # type: ignore[attr-defined]
            program = compile(module, _SOURCE, "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            # MemoryError: it nests too deeply for the parser.
            line = getattr(error, "lineno", None) or 1
            raise ToolError(f"line {line}: {type(error).__name__}: {error}") from None
        # Our `call_tool` instead of FastMCP's: it needs no list, and finds tools with names of code mode.
        names: dict[str, Any] = {**(inputs or {}), **(external_functions or {}), "call_tool": call_tool}
        exec(program, names)  # noqa: S102 - that is what this process is for
        try:
            return await names["__code__"]()
        except Exception as error:
            if any(isinstance(one, OSError) for one in behind(error)):
                # Perhaps a denial, which the host explains better.
                raise
            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in frames if frame.filename == _SOURCE]
            # Without a line of it: code with `yield` is not a coroutine.
            raise ToolError(f"line {lines[-1] if lines else 1}: {type(error).__name__}: {error}") from error


async def call_tool(name: str, arguments: Mapping[str, Any] | None = None) -> Any:
    """Call a tool of the host.

    Raises:
        ToolError: It failed, or cannot be called.
    """
    scope = current()
    assert scope is not None  # noqa: S101 - code runs in a call
    try:
        result = await scope.line.request("tools/call", {"name": name, "arguments": dict(arguments or {})})
    except MCPError as error:
        raise ToolError(f"{name}: {error.error.message}") from error
    structured = result.get("structuredContent")
    text = "\n".join(block["text"] for block in result.get("content", ()) if block.get("type") == "text")
    if result.get("isError"):
        # The contract has the message of an error there.
        failure = structured.get("results") if isinstance(structured, dict) else None
        raise ToolError(
            f"{name}: {failure['error'] if isinstance(failure, dict) and 'error' in failure else text}"
        )
    return text if structured is None else structured


mcp = FastMCP("code", providers=[HostTools()])
mcp.add_transform(CodeMode(sandbox_provider=ThisProcess(), execute_description=_ABOUT, max_tool_calls=None))
