"""The proxy's MCP server: other servers in front of which the output guard stands.

Requests and results are relayed as they are, list by list and key by key, but for what a model reads of a
tool's result, which passes `runner.guarding`; links in it are read where policy allows. Every client has
connections of its own, so that sessions, messages and questions of one never reach another.

Source: issue "Nothing floods the model"; requirements S4-5, S4-11, S4-65, S4-67, S4-80 to S4-82, S4-95;
architecture, "The proxy runs steps 1 to 2 and 7 to 11 around a remote server".
"""

import contextlib
import json
import logging
import uuid
from collections.abc import Mapping
from functools import partial
from typing import Any

import mcp_types
from fastmcp import FastMCP
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError

from runner.artifacts.process import failed
from runner.errors import CallError, Code
from runner.guarding import GuardedCall
from runner.identity import User, auth_provider
from runner.incoming import McpClient, Transport, has_sessions, sender
from runner.internals import is_ready, message_levels, relay_innermost, use_input_schemas
from runner.ladder import CallListener
from runner.proxy_backend import Backend, Unreachable
from runner.proxy_desk import Desk
from runner.proxy_watch import Watched, watch
from runner.reading import READING, described, reading_result
from runner.remote_resources import Reader, RemoteError, blocks_of, resource_tools
from runner.render import MESSAGE_MAX_BYTES, Delivery, render
from runner.resources import SCHEME, read_artifact
from runner.subscriptions import offer_subscriptions
from runner.telemetry import call_scope

__all__ = ["make_proxy"]

log = logging.getLogger(__name__)

_LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
_QUESTION = ("resultType", "inputRequests", "requestState")
_MODERN_ONLY = ("resultType", "ttlMs", "cacheScope")
_TEMPLATE = {
    "uriTemplate": "artifact://{id}{?offset,length}",
    "name": "artifact",
    "description": "What was taken out of a result, whole or a range of its bytes.",
}

_Context = ServerRequestContext[Any, Any]


def make_proxy(desk: Desk, *, transport: Transport) -> FastMCP:
    """Return the application that stands in front of the servers of `desk`."""
    app: FastMCP = FastMCP(
        desk.about.name,
        instructions=desk.about.instructions,
        version=desk.about.version,
        auth=auth_provider(desk.settings) if transport == "http" else None,
    )
    relay = _Proxy(app, desk, transport)
    relay_innermost(app, relay)
    offer_subscriptions(app, desk.events, relay.user_of, relay)
    # The remote servers know their schemas; nothing is checked against them on the way.
    use_input_schemas(app, lambda _name: None)
    return app


class _Proxy:
    """Relays requests, inside the SDK's own middleware. A `runner.subscriptions.Beyond`."""

    def __init__(self, app: FastMCP, desk: Desk, transport: Transport) -> None:
        self._app = app
        self._desk = desk
        self._transport = transport

    async def __call__(self, ctx: _Context, call_next: CallNext) -> HandlerResult:
        if ctx.method in ("initialize", "server/discover"):
            return self._announced(await call_next(ctx))
        acts = {
            **dict.fromkeys(_LISTS, self._list),
            "tools/call": self._call,
            "resources/read": self._read,
            "prompts/get": self._prompt,
            "completion/complete": self._complete,
        }
        act = acts.get(ctx.method)
        if act is None or ctx.request_id is None or not is_ready(ctx):
            return await call_next(ctx)
        try:
            result = await act(ctx, dict(ctx.params or {}), self.user_of(ctx))
        except (RemoteError, CallError) as error:
            raise MCPError(code=mcp_types.INTERNAL_ERROR, message=str(error)) from error
        return _in_its_era(ctx, result)

    def user_of(self, ctx: _Context) -> User:
        """Return who a request comes from, in the session in which it came."""
        return sender(self._desk.settings, self._desk.links.tokens, self._transport, ctx)[0]

    async def subscribe(self, ctx: _Context, uri: str) -> None:
        """Let the server of a resource tell of its changes."""
        user = self.user_of(ctx)
        problem: Exception | None = None
        for server, inner in self._desk.names.uri_inside(uri):
            try:
                await self._desk.backend(ctx, user, server).subscribe(inner)
            except (MCPError, RemoteError) as error:
                problem = error
                continue
            return
        raise MCPError(code=mcp_types.INVALID_PARAMS, message=f"{uri} cannot be subscribed to: {problem}")

    async def unsubscribe(self, ctx: _Context, uri: str) -> None:
        """Let it tell no more."""
        user = self.user_of(ctx)
        for server, inner in self._desk.names.uri_inside(uri):
            await self._desk.backend(ctx, user, server).unsubscribe(inner)

    async def _list(self, ctx: _Context, params: dict[str, Any], user: User) -> dict[str, Any]:
        key, names = _LISTS[ctx.method], self._desk.names
        if key.startswith("resource") and not self._desk.guard.config.resources.enabled:
            return {key: self._ours(key, [], user)}
        if not names.prefixed:
            result = await self._ask(ctx, user, names.servers[0], ctx.method, params)
        else:
            result = {key: await self._joined(ctx, user, key)}
        if result.get("nextCursor") is None:
            items = result.get(key)
            listed = items if isinstance(items, list) else []
            result = {**result, key: [*listed, *self._ours(key, listed, user)]}
        return result

    async def _joined(self, ctx: _Context, user: User, key: str) -> list[dict[str, Any]]:
        """Return the items of all servers; one that fails does not take the others down."""
        found: list[dict[str, Any]] = []
        for server in self._desk.names.servers:
            try:
                items = await self._all(ctx, user, server, key)
            except (MCPError, RemoteError) as error:
                facts = {"server": server, "method": ctx.method, "problem": str(error)[:300]}
                log.warning("server left out of a list", extra=facts)
                continue
            found += self._desk.names.listed(server, key, items)
        return found

    async def _all(
        self, ctx: _Context, user: User, server: str, key: str, *, method: str | None = None
    ) -> list[Any]:
        items: list[Any] = []
        seen: set[str] = set()
        params: dict[str, Any] = {}
        while True:
            page = await self._ask(ctx, user, server, method or ctx.method, params)
            found = page.get(key)
            items += found if isinstance(found, list) else []
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or cursor in seen:
                return items
            seen.add(cursor)
            params = {"cursor": cursor}

    def _ours(self, key: str, listed: list[Any], user: User) -> list[dict[str, Any]]:
        """Return what of our own stands behind a list; a server's own of the same name hides it."""
        desk, ours = self._desk, list[dict[str, Any]]()
        if desk.settings.extras and key == "resourceTemplates":
            ours = [_TEMPLATE]
        elif key == "tools":
            ours = described() if desk.settings.extras and user.name in desk.guard.keepers else []
            if self._offers_resource_tools():
                ours = [*(tool for name in desk.names.servers for tool in resource_tools(name)), *ours]
        names = {item.get("name") for item in listed if isinstance(item, Mapping)}
        return [item for item in ours if item["name"] not in names]

    async def _call(self, ctx: _Context, params: dict[str, Any], user: User) -> dict[str, Any]:
        trace = uuid.uuid4().hex[:12]
        name = str(params.get("name"))
        with call_scope(trace):
            offered = user.name in self._desk.guard.keepers
            try:
                result = await self._result(ctx, params, user, trace)
            except (RemoteError, CallError) as error:
                result = _failure(error)
            outcome = "error" if result.get("isError") else "ok"
            log.info("call ended", extra={"user": user.name, "tool": name, "outcome": outcome})
        if not offered and user.name in self._desk.guard.keepers and self._desk.settings.extras:
            await self._desk.tell(ctx, "notifications/tools/list_changed", "")
        return result

    async def _result(self, ctx: _Context, params: dict[str, Any], user: User, trace: str) -> dict[str, Any]:
        name, files = str(params.get("name")), self._desk.files(user, trace=trace)
        own = await self._own(ctx, name, params, user, trace)
        if own is not None:
            ours = GuardedCall(tool=name, files=files)
            return await self._desk.guard.message(own, ours, media_stay=False)
        found = self._desk.names.inside(name)
        if found is None:
            raise CallError(
                Code.E_TOOL_NOT_FOUND,
                f"there is no tool {name!r}; names begin with one of {', '.join(self._desk.names.servers)}",
            )
        server, inner = found
        backend = self._desk.backend(ctx, user, server)
        wire = await self._watched(ctx, backend, {**params, "name": inner}, name, user)
        if wire.get("resultType") == "input_required":
            return {key: wire[key] for key in _QUESTION if key in wire}
        call = GuardedCall(
            tool=inner, server=server, files=files, schema=await self._schema(ctx, user, server, inner)
        )
        reader = Reader(store=files.library.store, scope=call.scope)
        message = await self._with_links(wire, backend, server, reader)
        return await self._desk.guard.message(message, call, media_stay=False)

    async def _own(
        self, ctx: _Context, name: str, params: dict[str, Any], user: User, trace: str
    ) -> dict[str, Any] | None:
        """Return the result of one of our own tools; None if it is none, or a server's of that name."""
        desk = self._desk
        server, _, act = name.rpartition(".")
        if self._offers_resource_tools() and server in desk.names.servers:
            return await self._resource_tool(ctx, server, act, params.get("arguments"), user, trace)
        if desk.settings.extras and name in READING and name not in await self._tools(ctx, user):
            return await reading_result(params, desk.files(user, trace=trace))
        return None

    def _offers_resource_tools(self) -> bool:
        return self._desk.settings.resource_tools and self._desk.guard.config.resources.enabled

    async def _tools(self, ctx: _Context, user: User) -> set[str]:
        names = self._desk.names
        if names.prefixed:
            return set()
        await self._schema(ctx, user, names.servers[0], "")
        return set(self._desk.backend(ctx, user, names.servers[0]).schemas)

    async def _resource_tool(
        self, ctx: _Context, server: str, act: str, arguments: Any, user: User, trace: str
    ) -> dict[str, Any] | None:
        backend = self._desk.backend(ctx, user, server)
        remote, ours = await backend.remote(), backend.resources
        match act:
            case "resources_list":
                value: Any = {"resources": await ours.all(remote)}
            case "resources_templates_list":
                value = {"resourceTemplates": await ours.templates(remote)}
            case "resources_read":
                uri = arguments.get("uri") if isinstance(arguments, Mapping) else None
                files = self._desk.files(user, trace=trace)
                scope = GuardedCall(tool=act, files=files).scope
                reader = Reader(store=files.library.store, scope=scope)
                value = await ours.read(remote, str(uri), reader)
            case _:
                return None
        text = json.dumps(value, ensure_ascii=False)
        content = [{"type": "text", "text": text}]
        return {"content": content, "structuredContent": value, "isError": "error" in value}

    async def _watched(
        self, ctx: _Context, backend: Backend, params: dict[str, Any], name: str, user: User
    ) -> dict[str, Any]:
        desk = self._desk
        listener = CallListener(
            client=McpClient(ctx),
            params=dict(ctx.params or {}),
            levels=message_levels(self._app, ctx),
            deadlines=desk.settings.deadlines(name),
            user=user.segment,
            state=desk.state,
            publish=partial(desk.events.publish, user=user.segment, session=user.session),
        )

        async def act(watched: Watched) -> dict[str, Any]:
            return await backend.request("tools/call", params, watched)

        async with desk.admission.admit(user.segment):
            # A server that has to start first is not silent: connecting has a limit of its own.
            await backend.connected()
            try:
                return await watch(act, listener)
            except CallError:
                if not backend.busy and backend.ends_with_its_connection:
                    # It was asked to stop; a process that does not listen is ended, and started anew.
                    await backend.drop()
                raise

    async def _schema(self, ctx: _Context, user: User, server: str, tool: str) -> Mapping[str, Any] | None:
        """Return the output schema that a server declares for a tool."""
        backend = self._desk.backend(ctx, user, server)
        if not backend.schemas:
            # Without the list the call is answered all the same.
            with contextlib.suppress(MCPError, RemoteError):
                for item in await self._all(ctx, user, server, "tools", method="tools/list"):
                    backend.schemas[str(item.get("name"))] = item.get("outputSchema")
        return backend.schemas.get(tool)

    async def _with_links(
        self, wire: Mapping[str, Any], backend: Backend, server: str, reader: Reader
    ) -> dict[str, Any]:
        blocks: list[Any] = []
        for block in wire.get("content") or ():
            if not isinstance(block, Mapping) or block.get("type") != "resource_link":
                blocks.append(block)
                continue
            linked = dict(block)
            if self._desk.guard.config.resources.auto_read_if_size_under_bytes:
                linked = await backend.resources.linked(await backend.remote(), block, reader)
            outside = {"uri": self._desk.names.uri_outside(server, str(block.get("uri")))}
            blocks += blocks_of({**linked, **outside})
        return {**wire, "content": blocks}

    async def _read(self, ctx: _Context, params: dict[str, Any], user: User) -> dict[str, Any]:
        uri = str(params.get("uri", ""))
        if uri.startswith(SCHEME):
            return await read_artifact(self._desk.files(user), uri)
        if not self._desk.guard.config.resources.enabled:
            message = f"{uri!r} is not offered: output_guard.resources.enabled is off"
            raise MCPError(code=mcp_types.INVALID_PARAMS, message=message)
        problem: Exception | None = None
        for server, inner in self._desk.names.uri_inside(uri):
            try:
                result = await self._ask(ctx, user, server, ctx.method, {**params, "uri": inner})
            except (MCPError, Unreachable) as error:
                problem = error
                continue
            if len(json.dumps(result)) <= MESSAGE_MAX_BYTES:
                return result
            return await self._large(ctx, user, server, inner)
        if isinstance(problem, MCPError):
            raise problem
        raise RemoteError(str(problem))

    async def _large(self, ctx: _Context, user: User, server: str, uri: str) -> dict[str, Any]:
        """Return, for what no message can carry, references to what was kept of it."""
        backend, files = self._desk.backend(ctx, user, server), self._desk.files(user)
        scope = GuardedCall(tool="resources/read", files=files).scope
        reader = Reader(store=files.library.store, scope=scope)
        value = await backend.resources.read(await backend.remote(), uri, reader)
        text = json.dumps(value, ensure_ascii=False)
        return {"contents": [{"uri": uri, "mimeType": "application/json", "text": text}]}

    async def _prompt(self, ctx: _Context, params: dict[str, Any], user: User) -> dict[str, Any]:
        found = self._desk.names.inside(str(params.get("name")))
        if found is None:
            message = f"there is no prompt {params.get('name')!r}"
            raise MCPError(code=mcp_types.INVALID_PARAMS, message=message)
        return await self._ask(ctx, user, found[0], ctx.method, {**params, "name": found[1]})

    async def _complete(self, ctx: _Context, params: dict[str, Any], user: User) -> dict[str, Any]:
        ref = params.get("ref")
        ref = dict(ref) if isinstance(ref, Mapping) else {}
        if "uri" in ref:
            server, ref["uri"] = next(self._desk.names.uri_inside(str(ref["uri"])))
        else:
            found = self._desk.names.inside(str(ref.get("name")))
            if found is None:
                raise MCPError(
                    code=mcp_types.INVALID_PARAMS, message=f"there is no prompt {ref.get('name')!r}"
                )
            server, ref["name"] = found
        return await self._ask(ctx, user, server, ctx.method, {**params, "ref": ref})

    async def _ask(
        self, ctx: _Context, user: User, server: str, method: str, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        return await self._desk.backend(ctx, user, server).request(method, params)

    def _announced(self, result: HandlerResult) -> HandlerResult:
        """Announce what the servers announce beside what every FastMCP server does."""
        if not isinstance(result, dict):
            return result
        able = self._desk.about.capabilities
        special = {key: able[key] for key in ("completions", "experimental") if key in able}
        resources = {**(result.get("capabilities", {}).get("resources") or {}), "subscribe": True}
        return {**result, "capabilities": {**result["capabilities"], "resources": resources, **special}}


def _in_its_era(ctx: _Context, result: dict[str, Any]) -> dict[str, Any]:
    """Return a result in the form of the client's protocol version, whichever the server spoke."""
    if has_sessions(ctx):
        return {key: item for key, item in result.items() if key not in _MODERN_ONLY}
    kept = {} if ctx.method in ("tools/call", "prompts/get", "completion/complete") else _UNCACHED
    return {**kept, "resultType": "complete", **result}


_UNCACHED = {"ttlMs": 0, "cacheScope": "private"}


def _failure(error: RemoteError | CallError) -> dict[str, Any]:
    if isinstance(error, RemoteError):
        code = Code.E_BUSY if isinstance(error, Unreachable) else Code.E_CRASHED
        error = CallError(code, f"The remote server did not answer: {error}")
    return render(failed(error), wire={}, output_schema=None, delivery=Delivery.REFERENCE)
