"""A rehearsal of a call, on a server of our own, so that the call itself finds everything in place.

In a zygote it imports what is imported late and builds what is built late, once for all workers; in a
parked worker it makes the pages its own that the call will write to.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastmcp import FastMCP
from mcp_types.version import LATEST_MODERN_VERSION

from runner.internals.worker import serve_raw, single_call_server, warm_type_adapters
from runner.remote_state import RemoteState
from runner.request import RequestFacts

__all__ = ["Rehearsal"]

_MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": LATEST_MODERN_VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "runner", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
_OWN_FACTS = RequestFacts(
    request_id=0, protocol=LATEST_MODERN_VERSION, session_id="zygote", transport="stdio"
)


class Rehearsal:
    """A server of our own, on which the code that a call walks can be walked without side effects.

    In a zygote that imports what is imported late and builds what is built late, once for all
    workers; in a parked worker it makes the pages its own that the call will write to.
    """

    def __init__(self) -> None:
        self._server: FastMCP = FastMCP("rehearsal")
        self._server.tool(self._think, name="think")
        self._server.tool(self._work, name="work")

    async def prepare(self) -> None:
        """Make the server like one that serves a call."""
        await single_call_server(self._server, RemoteState(_refuse))
        await warm_type_adapters(self._server)

    async def walk(self, *, threads: bool) -> None:
        """Call tools as from stdio and as from HTTP; or, with `threads`, only the longest way of all."""
        web = replace(_OWN_FACTS, transport="streamable-http", headers=[])
        for name, facts in (("work", web),) if threads else (("think", _OWN_FACTS), ("think", web)):
            params = {"name": name, "arguments": {"number": 1}, "_meta": _MODERN_META}
            answer = await serve_raw(
                self._server, "tools/call", params, facts, {}, on_notify=_drop, on_request=_refuse
            )
            json.dumps(answer)

    @staticmethod
    async def _think(number: int, text: str = "") -> dict[str, object]:
        """Answer at once."""
        return {"number": number, "text": text}

    @staticmethod
    def _work(number: int, text: str = "") -> str:
        """Answer from a thread."""
        return f"{number}{text}"


async def _drop(_method: str, _params: Mapping[str, Any] | None) -> None:
    return None


async def _refuse(method: str, _params: Mapping[str, Any] | None) -> dict[str, Any]:
    raise RuntimeError(f"no {method} in a rehearsal")
