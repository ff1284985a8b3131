"""Code mode: clients get `search`, `get_schema` and `execute` instead of the tools of a server.

The three are tools of a file of ours, `runner/worker/tools/code_mode.py`, whose workers have a user's home
and none of the settings' grants to tools. Code there sends `tools/list` and `tools/call` to this process.
Each becomes a request of its client, with the limits, the audit record and the output guard of any other.
Such a call uses the place of the code that waits for it, one at a time. It cannot run code itself, since
only workers of that file get answers.

Source: FastMCP, "Code Mode"; `docs/serving.md`, "Code mode".
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import CLIENT_CAPABILITIES_META_KEY, INTERNAL_ERROR, INVALID_PARAMS

from runner.contract.unexpected_errors import unexpected
from runner.contract.widget_dialects import CODE_CALL_META, widget_rights
from runner.settings.execution import SettingsT, ToolSettings, is_pattern
from runner.steps.listener import ClientRefusal
from runner.toolset.admission import inside_place

__all__ = ["CODE_FILE", "MOST_CALLS", "CodeMode", "Front", "ToolsOfCode", "narrowed"]

MOST_CALLS = 50
"""Most requests for tools that one run of code sends."""

CODE_FILE = Path(__file__).parents[1] / "worker" / "tools" / "code_mode.py"
"""The tool file of the three tools."""

_MOST_PAGES = 100

_Context = ServerRequestContext[Any, Any]
Front = Callable[[_Context, CallNext], Coroutine[Any, Any, HandlerResult]]
"""Answers requests inside the SDK's own middleware."""


def narrowed(settings: SettingsT) -> SettingsT:
    """Return the settings for code by a model: without the grants to all tools.

    `[tools.execute]` still applies. A pattern such as `[tools."*"]` is not meant for code: only its limits
    and scopes apply.
    """
    general: dict[str, Any] = {
        "allow_net": (),
        "allow_env": (),
        "allow_read": (),
        "allow_write": (),
        "allow_sockets": False,
        "secrets": {},
        "background_jobs": False,
        "homes_for": "all",
        # Changes of one run to its process must not affect the next.
        "worker_reuse": "call",
        "resource_tools": False,
    }
    closed = {name: None for name in general if name in ToolSettings.model_fields}
    tools = {
        name: own.model_copy(update=closed) if is_pattern(name) else own
        for name, own in settings.tools.items()
    }
    return settings.model_copy(update={**general, "tools": tools})


@dataclass(frozen=True, slots=True)
class CodeMode:
    """Front that answers requests for tools with those of code mode, and passes others to the server.

    Attributes:
        front: Front of the server.
        code: Front of the tools of code mode.
        names: Names of the tools of code mode. A server's tool of such a name can be called by code only.
    """

    front: Front
    code: Front
    names: frozenset[str]

    async def __call__(self, ctx: _Context, call_next: CallNext) -> HandlerResult:
        """Answer a request."""
        is_call = ctx.method == "tools/call" and (ctx.params or {}).get("name") in self.names
        ours = ctx.request_id is not None and (is_call or ctx.method == "tools/list")
        return await (self.code if ours else self.front)(ctx, call_next)


@dataclass(slots=True, eq=False)
class ToolsOfCode:
    """The tools of a server for one run of code.

    Attributes:
        front: Front of the server.
        ctx: The request that runs the code.
    """

    front: Front
    ctx: _Context
    _calls: int = 0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def __call__(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer a `tools/list`, of all pages, or a `tools/call`.

        Raises:
            ClientRefusal: The server answers with an error of JSON-RPC, or the tool asks something.
        """
        # Lists count as well: each is a request of its own, which uses the same place.
        self._calls += 1
        if self._calls > MOST_CALLS:
            message = f"this code has called {MOST_CALLS} tools, and more are not called for one run"
            raise ClientRefusal(INVALID_PARAMS, message)
        async with self._turn:
            if method == "tools/list":
                return {"tools": await self._listed()}
            call = {"name": str(params.get("name")), "arguments": params.get("arguments") or {}}
            answer = await self._answer("tools/call", call)
        if answer.get("resultType", "complete") != "complete":
            message = f"{call['name']} asks its client something, which code cannot answer; call it directly"
            raise ClientRefusal(INVALID_PARAMS, message)
        return answer

    async def _listed(self) -> list[Any]:
        found: list[Any] = []
        params: dict[str, Any] = {}
        for _ in range(_MOST_PAGES):
            page = await self._answer("tools/list", params)
            tools = page.get("tools")
            each = (tool for tool in (tools if isinstance(tools, list) else ()) if isinstance(tool, Mapping))
            found += [tool for tool in each if widget_rights(tool).for_model]
            if not isinstance(page.get("nextCursor"), str):
                break
            params = {"cursor": page["nextCursor"]}
        return found

    async def _answer(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        meta = dict((self.ctx.params or {}).get("_meta") or {})
        # Progress is reported for the whole run. Without capabilities, no call becomes a task or a question.
        meta.pop("progressToken", None)
        # The requested version is that of the tool that runs the code.
        meta.pop("fastmcp", None)
        meta[CODE_CALL_META] = True
        if CLIENT_CAPABILITIES_META_KEY in meta:
            meta[CLIENT_CAPABILITIES_META_KEY] = {}
        inner = replace(self.ctx, method=method, params={**params, "_meta": meta})
        try:
            with inside_place():
                answer = await self.front(inner, _unanswered)
        except MCPError as error:
            raise ClientRefusal(error.error.code, error.error.message) from error
        except Exception as error:
            raise ClientRefusal(INTERNAL_ERROR, unexpected(error).message) from error
        return answer if isinstance(answer, Mapping) else {}


async def _unanswered(ctx: _Context) -> HandlerResult:
    raise MCPError(code=INVALID_PARAMS, message=f"{ctx.method} is not answered for code")
