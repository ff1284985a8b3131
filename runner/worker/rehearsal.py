"""A rehearsal of a call, on a server of our own, so that the call itself finds everything in place.

In a forkserver it triggers late imports and lazily built objects, once for all zygotes and their workers. In
a parked worker for one call it triggers copy-on-write of the pages that the call will write.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastmcp import FastMCP

from runner.worker.failure_capture import FailureCapture
from runner.worker.internals.low_level import low_level
from runner.worker.internals.server import (
    lifespan,
    refuse,
    serve_own,
    single_call_server,
    warm_type_adapters,
)

__all__ = ["Rehearsal"]

_HTTP: dict[str, Any] = {"transport": "streamable-http", "headers": []}


class Rehearsal:
    """A server of our own, on which the code path of a call can run without side effects."""

    def __init__(self) -> None:
        self._server: FastMCP = FastMCP("rehearsal")
        self._server.tool(self._think, name="think")
        self._server.tool(self._work, name="work")

    async def prepare(self) -> None:
        """Make the server like one that serves a call, and call it as from stdio and as from HTTP."""
        await single_call_server(self._server, refuse)
        await warm_type_adapters(self._server)
        self._server.middleware.append(FailureCapture(Path()))
        async with lifespan(self._server):
            pass
        # A sync tool would leave its thread behind, and a process that forks must have only one.
        for facts in ({}, _HTTP):
            await self._call("think", facts)

    async def walk(self) -> None:
        """Call a tool on the longest code path, from HTTP and into a thread; only in a worker."""
        await self._call("work", _HTTP)

    async def _call(self, tool: str, facts: Mapping[str, Any]) -> None:
        params = {"name": tool, "arguments": {"number": 1}}
        json.dumps(await serve_own(low_level(self._server), "tools/call", params, {}, **facts))

    @staticmethod
    async def _think(number: int, text: str = "") -> dict[str, object]:
        """Answer a question of a tool at once, without a model."""
        return {"number": number, "text": text}

    @staticmethod
    def _work(number: int, text: str = "") -> str:
        """Answer from a thread."""
        return f"{number}{text}"
