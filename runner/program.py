"""The program that zygotes load and workers run: a tool file behind its own FastMCP server.

A worker serves one raw MCP request with the author's own server, so what comes back is what plain
FastMCP would have put on the wire. What the host must know beside it (which exception a tool
raised, on which of the author's lines) is witnessed by a middleware and sent along.
"""

import asyncio
import contextlib
import json
import logging
import os
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, SupportsFloat

from fastmcp import FastMCP
from fastmcp.exceptions import DisabledError, FastMCPError, NotFoundError, ToolError, ValidationError
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import LATEST_MODERN_VERSION
from pydantic import ValidationError as PydanticValidationError

from runner.internals import (
    capabilities,
    lifespan,
    serve_raw,
    single_call_server,
    warm_type_adapters,
)
from runner.request import VISIBILITY_SUFFIX, RequestFacts, WireError
from runner.toolfile import author_frames, load_tool_files
from sandbox.errors import LoadError
from sandbox.frames import Kind
from sandbox.inside.program import Channel

__all__ = ["PROGRAM", "Program"]

_MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": LATEST_MODERN_VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "runner", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
_OWN_FACTS = RequestFacts(
    request_id=0, protocol=LATEST_MODERN_VERSION, session_id="zygote", transport="stdio"
)
_MAX_TEXT = 8000


class Program:
    """One tool file (or several, mounted), loaded once and served once a worker."""

    def __init__(self) -> None:
        self._server: FastMCP | None = None
        self._witness = _Witness(Path())
        self._line: _HostLine | None = None
        self._state = _StateStore(self._request_host)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stack = contextlib.AsyncExitStack()
        self._lifespan_state: Any = None
        self._environment: dict[str, str] = {}
        self._called: asyncio.Future[tuple[Mapping[str, Any], asyncio.Future[object]]] | None = None
        self._life: asyncio.Task[None] | None = None

    def load(self, config: Mapping[str, object]) -> object:
        """Import the files named in `config["files"]` and return the catalog."""
        # FastMCP writes each tool error with its traceback to standard error; the host tells it better.
        library = logging.getLogger("fastmcp")
        library.addHandler(logging.NullHandler())
        library.propagate = False
        files = [str(file) for file in _list(config["files"])]
        self._environment = {str(k): str(v) for k, v in dict(config["call_environment"]).items()}  # type: ignore[call-overload]
        server = self._server = load_tool_files(files)
        self._witness = _Witness(Path(files[0]).parent)
        server.middleware.append(self._witness)
        try:
            return asyncio.run(self._catalog(server))
        except Exception as error:
            raise LoadError(f"its tools cannot be listed: {type(error).__name__}: {error}") from error

    def prepare(self, *, rehearse: bool) -> None:
        """Enter the server's lifespan and make what is random differ between workers."""
        _reseed()
        _move_in(self._environment)
        loop = self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        # One task lives from the rehearsal to the answer: the thread that a rehearsed sync tool
        # started belongs to it, and is there when the call needs it.
        ready, self._called = loop.create_future(), loop.create_future()
        self._life = loop.create_task(self._live(ready, self._called, rehearse=rehearse))
        try:
            loop.run_until_complete(ready)
        except Exception as error:
            raise LoadError(f"its lifespan raised {type(error).__name__}: {error}") from error

    def serve(self, call: object, channel: Channel) -> object:
        """Serve one raw MCP request; see `runner.call` for the shape of call and answer."""
        if not isinstance(call, dict) or self._loop is None or self._called is None:
            raise TypeError("a call is an object, and `prepare` comes before `serve`")
        self._line = _HostLine(channel, self._loop)
        self._witness.channel = channel
        self._state.known = dict(call["known_state"])
        answer = self._loop.create_future()
        self._called.set_result((call, answer))
        return self._loop.run_until_complete(answer)

    async def _live(
        self,
        ready: "asyncio.Future[None]",
        called: "asyncio.Future[tuple[Mapping[str, Any], asyncio.Future[object]]]",
        *,
        rehearse: bool,
    ) -> None:
        """Be ready, wait for the call, answer it. The process ends with the answer."""
        try:
            await self._enter()
            if rehearse:
                await REHEARSAL.walk(threads=True)
        except Exception as error:  # noqa: BLE001 - told to whoever waits, see `prepare`
            ready.set_exception(error)
            return
        ready.set_result(None)
        call, answer = await called
        try:
            answer.set_result(await self._serve(call))
        except Exception as error:  # noqa: BLE001 - a fault of ours, told as a crash with its traceback
            answer.set_exception(error)

    async def _catalog(self, server: FastMCP) -> dict[str, object]:
        await single_call_server(server, self._state)
        await REHEARSAL.prepare()
        # A sync tool would leave its thread behind, and a zygote must have one only.
        await REHEARSAL.walk(threads=False)
        await warm_type_adapters(server)
        return {
            "name": server.name,
            "version": server.version,
            "instructions": server.instructions,
            "website_url": server.website_url,
            "icons": [
                icon.model_dump(by_alias=True, mode="json", exclude_none=True) for icon in server.icons
            ],
            "capabilities": capabilities(server),
            "tools": [
                tool.to_mcp_tool(name=tool.name).model_dump(by_alias=True, mode="json", exclude_none=True)
                for tool in await server.list_tools(run_middleware=False)
            ],
        }

    async def _enter(self) -> None:
        assert self._server is not None  # noqa: S101 - `load` comes before `prepare`
        self._lifespan_state = await self._stack.enter_async_context(lifespan(self._server))

    async def _serve(self, call: Mapping[str, Any]) -> dict[str, object]:
        assert self._server is not None  # noqa: S101 - `load` comes before `serve`
        assert self._line is not None  # noqa: S101 - set by `serve`
        facts = RequestFacts(**call["facts"])
        try:
            result = await serve_raw(
                self._server,
                call["method"],
                call["params"],
                facts,
                self._lifespan_state,
                on_notify=self._line.notify,
                on_request=self._line.request,
            )
        except WireError as error:
            return {"error": error.error, "raised": self._witness.raised}
        return {"result": _strict(result), "raised": self._witness.raised}

    async def _request_host(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        if self._line is None:
            raise RuntimeError("session state can be used in a call only, not while the file is imported")
        return await self._line.request(method, params)


class _HostLine:
    """Notifications and requests from a worker to its host."""

    def __init__(self, channel: Channel, loop: asyncio.AbstractEventLoop) -> None:
        self._channel = channel
        self._loop = loop
        self._asked = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        self._channel.send(Kind.NOTIFY, _strict({"method": method, "params": params}))

    async def request(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        self._asked += 1
        number = self._asked
        future = self._waiting[number] = self._loop.create_future()
        if len(self._waiting) == 1:
            self._loop.add_reader(self._channel.connection.fileno(), self._readable)
        self._channel.send(Kind.REQUEST, _strict({"id": number, "method": method, "params": params}))
        try:
            reply = await future
        finally:
            self._waiting.pop(number, None)
            if not self._waiting:
                self._loop.remove_reader(self._channel.connection.fileno())
        if "error" in reply:
            raise MCPError(**reply["error"])
        return dict(reply["result"])

    def _readable(self) -> None:
        frame = self._channel.receive()
        if frame is None or not isinstance(frame[1], dict):
            for future in self._waiting.values():
                future.set_exception(ConnectionError("the host has let go"))
            return
        waiting = self._waiting.get(int(frame[1]["id"]))
        if waiting is not None and not waiting.done():
            waiting.set_result(frame[1])


class _StateStore:
    """Session state that outlives the worker: FastMCP's key-value protocol, kept by the host.

    Attributes:
        known: Values that came with the call for keys that end in `VISIBILITY_SUFFIX`. FastMCP reads
            such a key in every request, nearly always to find nothing, so it costs no round trip.
    """

    def __init__(self, request: Any) -> None:
        self._request = request
        self.known: dict[str, dict[str, Any]] = {}

    async def get(self, key: str, *, collection: str | None = None) -> dict[str, Any] | None:
        if key.endswith(VISIBILITY_SUFFIX):
            return self.known.get(key)
        return (await self.ttl(key, collection=collection))[0]

    async def ttl(
        self, key: str, *, collection: str | None = None
    ) -> tuple[dict[str, Any] | None, float | None]:
        reply = await self._request("state/get", {"key": key, "collection": collection})
        return reply["value"], reply["ttl"]

    async def put(
        self,
        key: str,
        value: Mapping[str, Any],
        *,
        collection: str | None = None,
        ttl: SupportsFloat | None = None,
    ) -> None:
        seconds = None if ttl is None else float(ttl)
        facts = {"key": key, "collection": collection, "value": dict(value), "ttl": seconds}
        await self._request("state/put", facts)
        if key.endswith(VISIBILITY_SUFFIX):
            self.known[key] = dict(value)

    async def delete(self, key: str, *, collection: str | None = None) -> bool:
        reply = await self._request("state/delete", {"key": key, "collection": collection})
        return bool(reply["deleted"])

    async def get_many(
        self, keys: Sequence[str], *, collection: str | None = None
    ) -> list[dict[str, Any] | None]:
        return [await self.get(key, collection=collection) for key in keys]

    async def ttl_many(
        self, keys: Sequence[str], *, collection: str | None = None
    ) -> list[tuple[dict[str, Any] | None, float | None]]:
        return [await self.ttl(key, collection=collection) for key in keys]

    async def put_many(
        self,
        keys: Sequence[str],
        values: Sequence[Mapping[str, Any]],
        *,
        collection: str | None = None,
        ttl: SupportsFloat | None = None,
    ) -> None:
        for key, value in zip(keys, values, strict=True):
            await self.put(key, value, collection=collection, ttl=ttl)

    async def delete_many(self, keys: Sequence[str], *, collection: str | None = None) -> int:
        return sum([await self.delete(key, collection=collection) for key in keys])


class _Witness(Middleware):
    """Innermost middleware: remembers what a tool raised, and on which of the author's lines."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.channel: Channel | None = None
        self.raised: dict[str, object] | None = None

    async def on_call_tool(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        try:
            return await call_next(context)
        except Exception as error:
            self.raised = _describe(error, self._folder)
            denial = self.channel.explain(error) if self.channel is not None else None
            if denial is not None:
                self.raised["denied"] = {"operation": denial.operation, "path": denial.path}
            raise


def _describe(error: Exception, folder: Path) -> dict[str, object]:
    """Say in JSON what a tool raised; the cause that the author wrote, not FastMCP's wrapping."""
    if isinstance(error, ValidationError) and isinstance(error.__cause__, PydanticValidationError):
        faults = error.__cause__.errors(include_url=False, include_context=False, include_input=False)
        return {"kind": "arguments", "faults": _strict([_fault(fault) for fault in faults])}
    if isinstance(error, NotFoundError | DisabledError):
        return {"kind": "not found", "message": str(error)[:_MAX_TEXT]}
    cause: BaseException = error
    while isinstance(cause, FastMCPError) and cause.__cause__ is not None:
        cause = cause.__cause__
    filename = getattr(cause, "filename", None)
    return {
        "kind": "tool error" if isinstance(cause, ToolError) else "raised",
        "type": type(cause).__name__,
        "message": str(cause)[:_MAX_TEXT],
        "frames": author_frames(cause, folder)[-20:],
        "errno": getattr(cause, "errno", None) if isinstance(cause, OSError) else None,
        "filename": str(filename)[:4096] if isinstance(filename, str | bytes | Path) else None,
    }


def _fault(fault: Mapping[str, Any]) -> dict[str, object]:
    return {
        "argument": ".".join(str(part) for part in fault["loc"]),
        "problem": str(fault["msg"]),
        "type": str(fault["type"]),
    }


def _strict(value: Any) -> Any:
    """Return `value` as strict JSON: NaN and infinities, which JSON lacks, become null."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return json.loads(json.dumps(value), parse_constant=lambda _name: None)
    return value


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []


def _move_in(environment: Mapping[str, str]) -> None:
    """Point everything personal at the home, which was the scratch folder during the import."""
    os.environ.update(environment)
    tempfile.tempdir = None
    # In a home it may be missing; without one, `TMPDIR` is a folder that exists and nobody can write.
    os.makedirs(environment["TMPDIR"], mode=0o700, exist_ok=True)


def _reseed() -> None:
    """Give each worker its own random numbers: forked generators would all say the same."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


class _Rehearsal:
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
        await single_call_server(self._server, _StateStore(_refuse))
        await warm_type_adapters(self._server)

    async def walk(self, *, threads: bool) -> None:
        """Call tools as from stdio and as from HTTP; one of them in a thread, if `threads`."""
        web = RequestFacts(**{**asdict(_OWN_FACTS), "transport": "streamable-http", "headers": []})
        for name, facts in (("think", _OWN_FACTS), ("work" if threads else "think", web)):
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


REHEARSAL = _Rehearsal()
PROGRAM = Program()
