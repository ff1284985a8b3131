"""The proxy's MCP server: other servers in front of which the output guard stands.

Requests and results are relayed as they are, list by list and key by key, but for what a model reads of a
tool's result, which passes `runner.output_guard.guard`; links in it are read where policy allows. Every
client has connections of its own, so that sessions, messages and questions of one never reach another.

Source: `docs/output-guard.md`; requirements S4-5, S4-11, S4-65, S4-67, S4-80 to S4-82, S4-95 and
S4-98; architecture, "One call, in order", of which it has steps 1, 2 and 10.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import mcp_types
from fastmcp import FastMCP
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import SERVER_INFO_META_KEY
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from runner.errors import CallError
from runner.files.download_links import without_tokens
from runner.files.my_files import SCHEME
from runner.output_guard.guard import GuardedCall
from runner.protocol.artifact_resources import read_artifact
from runner.protocol.artifact_tools import offered
from runner.protocol.eras import has_sessions, in_era_of
from runner.protocol.failed_requests import answer_failures
from runner.protocol.internals.connection import is_ready
from runner.protocol.internals.host import relay_innermost, use_input_schemas
from runner.protocol.resource_tools import Reader, RemoteError, resource_tools
from runner.protocol.result_messages import DownloadUrl, ResultMessages
from runner.protocol.sender import McpClient, Transport, asker, newcomer, request_facts
from runner.protocol.subscriptions import offer_subscriptions
from runner.protocol.visible_offers import visible_introduction, visible_list
from runner.proxy.calls import TASKS, Calls
from runner.proxy.foreign_words import legible_error, without_our_words
from runner.proxy.questions import answered
from runner.proxy.remote import ServerInfo, ServerUnreachable
from runner.proxy.repair import LISTS
from runner.proxy.upstream import Upstream
from runner.proxy.upstreams import Upstreams
from runner.server.extras import EXTRAS
from runner.server.files_block import takes_files, with_descriptions, with_instructions
from runner.server.host import front_of
from runner.steps.authorization import callable_tools
from runner.steps.client_message import MESSAGE_MAX_BYTES
from runner.steps.inputs import check_json
from runner.toolset.hidden_identity import without_identity
from runner.users.identity import User, auth_provider

__all__ = ["make_proxy"]

log = logging.getLogger(__name__)

_PASSED_ON = frozenset(
    {"notifications/progress", "notifications/roots/list_changed", "notifications/tasks/status"}
)
_OF_HANDSHAKE, _OF_LATER_ERAS = "tasks", "extensions"
_TEMPLATE = {
    "uriTemplate": "artifact://{id}{?offset,length}",
    "name": "artifact",
    "description": "What was taken out of a result, whole or a range of its bytes.",
}

_Context = ServerRequestContext[Any, Any]


def make_proxy(
    upstreams: Upstreams, *, transport: Transport, download_url: DownloadUrl | None = None
) -> FastMCP:
    """Return the application that stands in front of the servers of `upstreams`.

    Args:
        upstreams: The servers.
        transport: What it will be served over.
        download_url: Makes download addresses, over HTTP.
    """
    names = upstreams.names
    app: FastMCP = FastMCP(
        "runner proxy" if names.prefixed else names.servers[0],
        auth=auth_provider(upstreams.settings) if transport == "http" else None,
    )
    relay = _Proxy(upstreams, transport, download_url)
    front = front_of(app, relay, upstreams, transport, download_url, upstreams.own_paths)
    relay_innermost(app, front, around=answer_failures(upstreams.own_paths))
    lists_files = upstreams.may_take_files and upstreams.settings.extras == "descriptions"
    offer_subscriptions(app, upstreams.events, relay.user_of, relay, lists_files=lists_files)
    # The remote servers know their schemas; nothing is checked against them on the way.
    use_input_schemas(app, lambda _name: None)
    return app


# What methods of the protocol begin with, in any version.
_OF_MCP = (
    "completion/", "elicitation/", "logging/", "notifications/", "prompts/", "resources/", "roots/",
    "sampling/", "server/", "subscriptions/", "tasks/", "tools/",
)  # fmt: skip

_Act = Callable[[_Context, dict[str, Any], User], Awaitable[dict[str, Any]]]


class _Proxy:
    """Relays requests, inside the SDK's own middleware. A `runner.protocol.subscriptions.Beyond`."""

    def __init__(self, upstreams: Upstreams, transport: Transport, download_url: DownloadUrl | None) -> None:
        self._upstreams = upstreams
        self._transport = transport
        messages = ResultMessages(
            settings=upstreams.settings,
            guard=upstreams.guard,
            own_paths=upstreams.own_paths,
            download_url=download_url,
        )
        calls = Calls(upstreams, messages)
        self._acts = {
            **dict.fromkeys(LISTS, self._list),
            **dict.fromkeys(TASKS, calls.task),
            "tools/call": calls.call,
            "resources/read": self._read,
            "prompts/get": self._prompt,
            "completion/complete": self._complete,
        }

    async def __call__(self, ctx: _Context, call_next: CallNext) -> HandlerResult:
        if ctx.method in ("initialize", "server/discover"):
            result, upstreams = await call_next(ctx), self._upstreams
            if not isinstance(result, dict):
                return result
            begins = ctx.method == "initialize"
            user = newcomer(upstreams.settings, self._transport) if begins else self.user_of(ctx)
            try:
                about = await upstreams.introduction(ctx, user)
            except RemoteError as error:
                if begins:
                    raise MCPError(code=mcp_types.INTERNAL_ERROR, message=str(error)) from error
                # If this were refused, the client would try a handshake. Its next request gets the reason.
                about = ServerInfo(name="runner proxy")
            result = _announced(ctx, result, about)
            if upstreams.may_take_files:
                result = await with_instructions(result, upstreams, user)
            return visible_introduction(result)
        if ctx.request_id is None:
            await self._on_notification(ctx)
            return await call_next(ctx)
        act = self._acts.get(ctx.method)
        if not is_ready(ctx):
            return await call_next(ctx)
        if act is None:
            try:
                return await call_next(ctx)
            except MCPError as error:
                if error.error.code != mcp_types.METHOD_NOT_FOUND or not self._may_be_foreign(ctx.method):
                    raise
            act = self._foreign
        return await self._acted(ctx, act)

    def _may_be_foreign(self, method: str) -> bool:
        """Return whether a server may have this method as its own.

        With several servers the target is ambiguous. A protocol method that we do not know could be another
        way to a tool's result, past the output guard.
        """
        return not self._upstreams.names.prefixed and not method.startswith(_OF_MCP)

    async def _acted(self, ctx: _Context, act: _Act) -> HandlerResult:
        try:
            result = await act(ctx, dict(ctx.params or {}), self.user_of(ctx))
        except MCPError as error:
            raise legible_error(error) from error
        except RemoteError as error:
            raise MCPError(code=mcp_types.INTERNAL_ERROR, message=str(error)) from error
        except CallError as error:
            details = {"error_code": error.code.name, **error.details}
            raise MCPError(code=mcp_types.INTERNAL_ERROR, message=error.message, data=details) from error
        return in_era_of(ctx, await visible_list(ctx.method, result))

    async def _on_notification(self, ctx: _Context) -> None:
        """Forward notifications of a client with sessions; connect its servers when it is initialized."""
        if ctx.method == "notifications/initialized" and has_sessions(ctx):
            self._upstreams.connect(ctx, self.user_of(ctx))
        elif ctx.method in _PASSED_ON and has_sessions(ctx):
            for upstream in self._upstreams.of_client(ctx):
                await upstream.tell(ctx.method, ctx.params or {})

    def user_of(self, ctx: _Context) -> User:
        """Return the user and session of a request."""
        return asker(self._upstreams.settings, self._upstreams.links.tokens, self._transport, ctx)

    async def subscribe(self, ctx: _Context, uri: str) -> None:
        """Subscribe to a resource at its server."""
        user = self.user_of(ctx)
        server, inner = self._server_of(uri)
        try:
            await self._upstreams.upstream(ctx, user, server).subscribe(inner)
        except (MCPError, RemoteError) as error:
            message = f"{uri} cannot be subscribed to: {error}"
            raise MCPError(code=mcp_types.INVALID_PARAMS, message=message) from error

    async def unsubscribe(self, ctx: _Context, uri: str) -> None:
        """Unsubscribe from a resource at its server."""
        server, inner = self._server_of(uri)
        await self._upstreams.upstream(ctx, self.user_of(ctx), server).unsubscribe(inner)

    def _server_of(self, uri: str) -> tuple[str, str]:
        """Return the server that a resource belongs to, and its own URI of it.

        Raises:
            MCPError: The URI belongs to no server.
        """
        names = self._upstreams.names
        found = names.uri_inside(uri)
        if found is None:
            example = names.uri_outside(names.servers[0], "file://…")
            message = f"no server has {uri!r}: of several servers each URI names its own, as {example} does"
            raise MCPError(code=mcp_types.INVALID_PARAMS, message=message)
        return found

    def _prompt_of(self, name: object) -> tuple[str, str]:
        """Return the server that a prompt belongs to, and its own name of it.

        Raises:
            MCPError: The name belongs to no server.
        """
        found = self._upstreams.names.inside(str(name))
        if found is None:
            raise MCPError(code=mcp_types.INVALID_PARAMS, message=f"there is no prompt {name!r}")
        return found

    @asynccontextmanager
    async def _admitted(self, ctx: _Context, user: User) -> AsyncIterator[None]:
        """Hold a place for a request that a server answers, as for such a one that our own files answer.

        Raises:
            CallError: `E_BUSY`, too many wait; `E_INVALID_ARGUMENT`, its params are not JSON.
        """
        upstreams = self._upstreams
        check_json(ctx.params or {})
        async with upstreams.drain.call(_untold, of_tool=False), upstreams.admission.admit(user.segment):
            with upstreams.call_locks.calling(user.segment):
                yield

    async def _list(self, ctx: _Context, params: dict[str, Any], user: User) -> dict[str, Any]:
        key, names = LISTS[ctx.method][0], self._upstreams.names
        if key.startswith("resource") and not self._upstreams.guard.config.resources.enabled:
            return {key: self._ours(key, [], user)}
        async with self._admitted(ctx, user):
            if names.prefixed:
                found = (self._items(ctx, user, server, key) for server in names.servers)
                result = {key: [item for items in await asyncio.gather(*found) for item in items]}
            else:
                result = await self._listed(ctx, user, params)
        if key == "tools":
            result = await with_descriptions(result, self._upstreams, user, takes=self._takes_files)
        if result.get("nextCursor") is None:
            items = result.get(key)
            listed = items if isinstance(items, list) else []
            result = {**result, key: [*listed, *self._ours(key, listed, user)]}
        if key == "tools":
            return callable_tools(result, self._upstreams.settings.scopes, request_facts(ctx))
        return result

    async def _listed(self, ctx: _Context, user: User, params: dict[str, Any]) -> dict[str, Any]:
        """Return a page of the list of a server that stands alone."""
        key = LISTS[ctx.method][0]
        upstream = self._upstreams.upstream(ctx, user, self._upstreams.names.servers[0])
        try:
            result = await upstream.request(ctx.method, params)
        except MCPError as error:
            if error.error.code != mcp_types.METHOD_NOT_FOUND:
                raise
            # We announce what is ours too, so a client may ask what it would not ask the server itself.
            return {key: []}
        return {**result, key: await self._shown(upstream, key, result.get(key))}

    async def _shown(self, upstream: Upstream, key: str, items: Any) -> Any:
        """Return a server's list as clients see it, and record its tools."""
        settings = self._upstreams.settings
        if key != "tools" or not isinstance(items, list):
            return items
        await upstream.learn(items)
        if self._upstreams.ways[upstream.name].contract == "guard":
            return items
        return await without_identity(items, settings.username_parameter)

    async def _items(self, ctx: _Context, user: User, server: str, key: str) -> list[dict[str, Any]]:
        """Return the items of one of several servers; none if it fails, so that others are not affected."""
        try:
            upstream = self._upstreams.upstream(ctx, user, server)
            items = await self._shown(upstream, key, await upstream.pages(ctx.method, key))
        except (MCPError, RemoteError) as error:
            facts = {"server": server, "method": ctx.method, "problem": str(error)[:300]}
            log.warning("server omitted from list", extra=facts)
            return []
        listed = self._upstreams.names.listed(server, key, items)
        if len(listed) < len(items):
            count = len(items) - len(listed)
            log.warning(
                "list items dropped: ambiguous names",
                extra={"server": server, "method": ctx.method, "count": count},
            )
        return listed

    def _takes_files(self, tool: Mapping[str, Any]) -> bool:
        """Return whether a listed tool is given the user's files, as a tool of our own is."""
        found = self._upstreams.names.inside(str(tool.get("name")))
        return found is not None and self._upstreams.ways[found[0]].contract != "guard" and takes_files(tool)

    def _ours(self, key: str, listed: list[Any], user: User) -> list[dict[str, Any]]:
        """Return our own items behind a list; a server's item of the same name hides ours."""
        upstreams, ours = self._upstreams, list[dict[str, Any]]()
        if upstreams.settings.has_extras and key == "resourceTemplates":
            ours = [_TEMPLATE]
        elif upstreams.offers_files and key in ("resources", "prompts"):
            ours = [*EXTRAS.listed[key]]
        elif key == "tools":
            ours = offered(upstreams.settings)
            if upstreams.offers_resource_tools:
                ours = [*(tool for name in upstreams.names.servers for tool in resource_tools(name)), *ours]
        names = {item.get("name") for item in listed if isinstance(item, Mapping)}
        return [item for item in ours if item["name"] not in names]

    async def _read(self, ctx: _Context, params: dict[str, Any], user: User) -> dict[str, Any]:
        uri = str(params.get("uri", ""))
        if uri.startswith(SCHEME):
            return await read_artifact(self._upstreams.files(user), uri)
        ours = await self._extra(ctx, params, user)
        if ours is not None:
            return ours
        if not self._upstreams.guard.config.resources.enabled:
            message = f"{uri!r} is not offered: output_guard.resources.enabled is off"
            raise MCPError(code=mcp_types.INVALID_PARAMS, message=message)
        server, inner = self._server_of(uri)
        try:
            result = await self._ask(ctx, user, server, {**params, "uri": inner})
        except ServerUnreachable as error:
            raise RemoteError(str(error)) from error
        if len(json.dumps(result)) > MESSAGE_MAX_BYTES:
            return await self._large(ctx, user, server, inner)
        contents = result.get("contents")
        if not isinstance(contents, list):
            return result
        return {
            **result,
            "contents": [self._upstreams.names.block_outside(server, part) for part in contents],
        }

    async def _extra(self, ctx: _Context, params: dict[str, Any], user: User) -> dict[str, Any] | None:
        """Return our own resource, prompt or completion, if offered: no server can replace it."""
        if not self._upstreams.offers_files:
            return None
        return await EXTRAS.answer(ctx.method, params, self._upstreams, user)

    async def _large(self, ctx: _Context, user: User, server: str, uri: str) -> dict[str, Any]:
        """Return, for what no message can carry, references to what was kept of it."""
        upstream, files = self._upstreams.upstream(ctx, user, server), self._upstreams.files(user)
        reader = Reader.of(self._upstreams.guard, GuardedCall(tool="resources/read", files=files))
        value = await upstream.resources.read(upstream.remote, uri, reader)
        text = json.dumps(value, ensure_ascii=False)
        outside = self._upstreams.names.uri_outside(server, uri)
        return {"contents": [{"uri": outside, "mimeType": "application/json", "text": text}]}

    async def _prompt(self, ctx: _Context, params: dict[str, Any], user: User) -> dict[str, Any]:
        ours = await self._extra(ctx, params, user)
        if ours is not None:
            return ours
        server, inner = self._prompt_of(params.get("name"))
        result = await self._ask(ctx, user, server, {**params, "name": inner})
        if "messages" not in result:
            # The server asks for input first.
            return result
        files = self._upstreams.files(user)
        call = GuardedCall(tool="prompts/get", server=server, files=files)
        shown = await asyncio.to_thread(without_tokens, without_our_words(result))
        return await self._upstreams.guard.prompt(shown, call)

    async def _complete(self, ctx: _Context, params: dict[str, Any], user: User) -> dict[str, Any]:
        ref = params.get("ref")
        ref = dict(ref) if isinstance(ref, Mapping) else {}
        if "uri" in ref:
            server, ref["uri"] = self._server_of(str(ref["uri"]))
        else:
            server, ref["name"] = self._prompt_of(ref.get("name"))
        return await self._ask(ctx, user, server, {**params, "ref": ref})

    async def _foreign(self, ctx: _Context, params: dict[str, Any], user: User) -> dict[str, Any]:
        """Answer a method that we do not know as the server does, which may not know it either."""
        return await self._ask(ctx, user, self._upstreams.names.servers[0], params)

    async def _ask(self, ctx: _Context, user: User, server: str, params: dict[str, Any]) -> dict[str, Any]:
        upstream = self._upstreams.upstream(ctx, user, server)

        async def send(params: dict[str, Any]) -> dict[str, Any]:
            return await upstream.request(ctx.method, params)

        async with self._admitted(ctx, user):
            return await answered(send, params, McpClient(ctx).request if has_sessions(ctx) else None)


def _announced(ctx: _Context, result: Mapping[str, Any], about: ServerInfo) -> dict[str, Any]:
    """Announce what the servers announce beside what every FastMCP server does."""
    version = result.get("protocolVersion", ctx.protocol_version)
    of_era = _OF_HANDSHAKE if version in HANDSHAKE_PROTOCOL_VERSIONS else _OF_LATER_ERAS
    special = {
        key: about.capabilities[key]
        for key in ("completions", "experimental", of_era)
        if key in about.capabilities
    }
    able = result.get("capabilities", {})
    resources = {**(able.get("resources") or {}), "subscribe": True}
    named = {"name": about.name} if about.version is None else {"name": about.name, "version": about.version}
    made = {**result, "capabilities": {**able, "resources": resources, **special}}
    if about.instructions:
        made["instructions"] = about.instructions
    if "serverInfo" in result:
        made["serverInfo"] = {**result["serverInfo"], **named}
    meta = result.get("_meta")
    if isinstance(meta, Mapping) and SERVER_INFO_META_KEY in meta:
        made["_meta"] = {**meta, SERVER_INFO_META_KEY: {**meta[SERVER_INFO_META_KEY], **named}}
    return made


async def _untold(_notice: str) -> None:
    """Ignore the drain: only calls of tools are ended for it."""
