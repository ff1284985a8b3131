"""A rehearsal of a call, on a server of our own, so that the call itself finds everything in place.

In a forkserver it imports what is imported late and builds what is built late, once for all zygotes and their
workers; in a parked worker of one call it makes the pages its own that the call will write to.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastmcp import FastMCP
from mcp_types.version import LATEST_MODERN_VERSION

from runner.worker.failure_capture import FailureCapture
from runner.worker.internals.low_level import low_level
from runner.worker.internals.server import lifespan, serve_raw, single_call_server, warm_type_adapters
from runner.worker.remote_state import RemoteState
from runner.worker.wire import RequestFacts

__all__ = ["Rehearsal"]

_MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": LATEST_MODERN_VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "runner", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
_STDIO = RequestFacts(request_id=0, protocol=LATEST_MODERN_VERSION, session_id="rehearsal", transport="stdio")
_HTTP = replace(_STDIO, transport="streamable-http", headers=[])


class Rehearsal:
    """A server of our own, on which the code that a call walks can be walked without side effects."""

    def __init__(self) -> None:
        self._server: FastMCP = FastMCP("rehearsal")
        self._server.tool(self._think, name="think")
        self._server.tool(self._work, name="work")

    async def prepare(self) -> None:
        """Make the server like one that serves a call, and call it as from stdio and as from HTTP."""
        await single_call_server(self._server, RemoteState(_refuse))
        await warm_type_adapters(self._server)
        self._server.middleware.append(FailureCapture(Path()))
        async with lifespan(self._server):
            pass
        # A sync tool would leave its thread behind, and what is to be forked must have one only.
        for facts in (_STDIO, _HTTP):
            await self._call("think", facts)

    async def walk(self) -> None:
        """Call a tool on the longest way of all, from HTTP and into a thread: in a worker."""
        await self._call("work", _HTTP)

    async def _call(self, tool: str, facts: RequestFacts) -> None:
        params = {"name": tool, "arguments": {"number": 1}, "_meta": _MODERN_META}
        answer = await serve_raw(
            low_level(self._server),
            "tools/call",
            params,
            facts,
            {},
            on_notify=_drop,
            on_request=_refuse,
        )
        json.dumps(answer)

    @staticmethod
    async def _think(number: int, text: str = "") -> dict[str, object]:
        """Answer a question of a tool at once, without a model."""
        return {"number": number, "text": text}

    @staticmethod
    def _work(number: int, text: str = "") -> str:
        """Answer from a thread."""
        return f"{number}{text}"


async def _drop(_method: str, _params: Mapping[str, Any] | None) -> None:
    return None


async def _refuse(method: str, _params: Mapping[str, Any] | None) -> dict[str, Any]:
    raise RuntimeError(f"no {method} in a rehearsal")
