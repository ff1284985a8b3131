"""`runner proxy`: other MCP servers behind the output guard.

Requests and results are relayed unchanged, except for the parts of a tool's result that a model reads. These
pass through `runner.output_guard.guard`; links in them are read where policy allows. Each client has its own
connections, so that sessions, messages and questions of one never reach another.

Source: `docs/output-guard.md`; requirements S4-5, S4-11, S4-65, S4-67, S4-80 to S4-82, S4-95 and
S4-98; architecture, "One call, in order", of which it has steps 1, 2 and 10.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

import mcp_types
from fastmcp import FastMCP
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import SERVER_INFO_META_KEY
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from runner.contract.widget_dialects import SCHEME as PAGES
from runner.errors import CallError
from runner.files.download_links import without_tokens
from runner.files.my_files import SCHEME
from runner.formats.terminal_text import visible_value
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
from runner.protocol.subscriptions import Subscriptions
from runner.protocol.visible_offers import visible_introduction, visible_list
from runner.proxy.answers import LISTS, legible_error, without_our_words
from runner.proxy.calls import TASKS, answer_call, answer_task
from runner.proxy.questions import answered
from runner.proxy.remote import ServerInfo
from runner.proxy.targets import Target
from runner.proxy.upstream import Upstream
from runner.proxy.upstreams import Upstreams, ways_to
from runner.server.ahead import transport_of
from runner.server.extras import EXTRAS, Extras
from runner.server.files_block import takes_files, with_descriptions, with_instructions
from runner.server.host import front_of
from runner.server.serve import serve_application, with_code
from runner.settings.settings import Settings
from runner.steps.authorization import callable_tools
from runner.steps.client_message import MESSAGE_MAX_BYTES
from runner.steps.inputs import check_json
from runner.toolset.hidden_identity import without_identity
from runner.users.identity import User, auth_provider

__all__ = ["make_proxy", "serve_proxy"]

log = logging.getLogger(__name__)

_PASSED_ON = frozenset(
    {"notifications/progress", "notifications/roots/list_changed", "notifications/tasks/status"}
)
_Context = ServerRequestContext[Any, Any]


def make_proxy(
    upstreams: Upstreams, *, transport: Transport, download_url: DownloadUrl | None = None
) -> FastMCP:
    """Return the application that relays to the servers of `upstreams`.

    Args:
        upstreams: The servers.
        transport: The transport that will serve it.
        download_url: Creates download URLs, over HTTP.
    """
    names = upstreams.names
    app: FastMCP = FastMCP(
        "runner proxy" if names.prefixed else names.servers[0],
        version=version("toolcell"),
        auth=auth_provider(upstreams.settings) if transport == "http" else None,
    )
    relay = _Proxy(upstreams, transport, download_url)
    front = front_of(app, relay, upstreams, transport, download_url, upstreams.own_paths)
    relay_innermost(app, front, around=answer_failures(upstreams.own_paths))
    lists_files = upstreams.may_take_files and upstreams.settings.extras == "descriptions"
    Subscriptions(upstreams.events, relay.user_of, beyond=relay, lists_files=lists_files).offer(app)
    # The remote servers know their schemas; nothing is checked against them on the way.
    use_input_schemas(app, lambda _name: None)
    return app


async def serve_proxy(settings: Settings, targets: Sequence[Target], reread: Callable[[], Settings]) -> int:
    """Serve the proxy until the client disconnects or a signal arrives; return the exit status.

    Args:
        settings: The effective settings.
        targets: The servers.
        reread: Reloads the settings.

    Raises:
        UsageError: A command cannot be run, or the address cannot be listened on.
    """
    transport = transport_of(settings)
    opened = with_code(settings, Upstreams.open(settings, ways_to(settings, targets)))

    def make(upstreams: Upstreams, download_url: DownloadUrl | None) -> FastMCP:
        return make_proxy(upstreams, transport=transport, download_url=download_url)

    return await serve_application(settings, transport, opened, make, reread)


# Prefixes of the protocol's methods, in any version.
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
        self._acts: dict[str, _Act] = {
            **dict.fromkeys(LISTS, self._list),
            **dict.fromkeys(TASKS, partial(answer_task, upstreams, messages)),
            "tools/call": partial(answer_call, upstreams, messages),
            "resources/read": self._read,
            "prompts/get": self._prompt,
            "completion/complete": self._ask,
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
                # An error would make the client try a handshake. Its next request fails with the reason.
                about = ServerInfo()
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
                # A server's own extension is forwarded. With several servers, the target is ambiguous. A
                # method of the protocol that is unknown to us could return a result past the output guard.
                is_ours = self._upstreams.names.prefixed or ctx.method.startswith(_OF_MCP)
                if is_ours or error.error.code != mcp_types.METHOD_NOT_FOUND:
                    raise
            act = self._ask
        return await self._acted(ctx, act)

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
        server, inner = self._upstreams.names.route(ctx.method, {"uri": uri})
        try:
            await self._upstreams.upstream(ctx, self.user_of(ctx), server).subscribe(inner["uri"])
        except (MCPError, RemoteError) as error:
            message = f"{uri} cannot be subscribed to: {error}"
            raise MCPError(code=mcp_types.INVALID_PARAMS, message=message) from error

    async def unsubscribe(self, ctx: _Context, uri: str) -> None:
        """Unsubscribe from a resource at its server."""
        server, inner = self._upstreams.names.route(ctx.method, {"uri": uri})
        await self._upstreams.upstream(ctx, self.user_of(ctx), server).unsubscribe(inner["uri"])

    @asynccontextmanager
    async def _admitted(self, ctx: _Context, user: User) -> AsyncIterator[None]:
        """Admit a request that a server answers, as the runner admits one about its own files.

        Raises:
            CallError: `E_BUSY`, too many wait; `E_INVALID_ARGUMENT`, its params are not JSON.
        """
        upstreams = self._upstreams
        check_json(ctx.params or {})
        async with upstreams.drain.call(_untold, of_tool=False), upstreams.admission.admit(user.segment):
            with upstreams.call_locks.calling(user.segment):
                yield

    async def _list(self, ctx: _Context, params: dict[str, Any], user: User) -> dict[str, Any]:
        """Return the servers' list, then our own items; a server's item hides ours of that name."""
        key, upstreams, settings = LISTS[ctx.method][0], self._upstreams, self._upstreams.settings
        if key.startswith("resource") and not upstreams.guard.config.resources.enabled:
            result: dict[str, Any] = {key: []}
        else:
            async with self._admitted(ctx, user):
                result = await self._listed(ctx, user, key, params)
        if key != "tools":
            has_ours = upstreams.offers_files or (settings.has_extras and key == "resourceTemplates")
            return EXTRAS.merged(ctx.method, result) if has_ours else result

        def takes(tool: Mapping[str, Any]) -> bool:
            """Return whether a listed tool receives the user's files, as our own tools do."""
            found = upstreams.names.inside(str(tool.get("name")))
            return found is not None and upstreams.ways[found[0]].contract != "guard" and takes_files(tool)

        result = await with_descriptions(result, upstreams, user, takes=takes)
        ours = offered(settings)
        if upstreams.offers_resource_tools:
            ours = [*(tool for name in upstreams.names.servers for tool in resource_tools(name)), *ours]
        result = Extras(listed={"tools": ours}).merged(ctx.method, result)
        return callable_tools(result, settings.scopes, request_facts(ctx))

    async def _listed(self, ctx: _Context, user: User, key: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return the merged list of several servers, or the requested page of a single server's list."""
        servers = self._upstreams.names.servers
        if len(servers) > 1:
            found = await asyncio.gather(*(self._items(ctx, user, server, key) for server in servers))
            return {key: [item for items in found for item in items]}
        upstream = self._upstreams.upstream(ctx, user, servers[0])
        try:
            result = await upstream.request(ctx.method, params)
        except MCPError as error:
            if error.error.code != mcp_types.METHOD_NOT_FOUND:
                raise
            # We also announce our own capabilities, so a client may request a list that the server lacks.
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
        server, inner = self._upstreams.names.route(ctx.method, params)
        result = await self._ask(ctx, params, user)
        # A host renders the pages of widgets, as of our own files, and no model reads them.
        if not uri.startswith(PAGES) and len(json.dumps(result)) > MESSAGE_MAX_BYTES:
            return await self._large(ctx, user, server, inner["uri"])
        contents = result.get("contents")
        if not isinstance(contents, list):
            return result
        shown = [self._upstreams.names.block_outside(server, part) for part in contents]
        return {**result, "contents": shown}

    async def _extra(self, ctx: _Context, params: dict[str, Any], user: User) -> dict[str, Any] | None:
        """Return our own resource, prompt or completion, if offered: no server can replace it."""
        if not self._upstreams.offers_files:
            return None
        return await EXTRAS.answer(ctx.method, params, self._upstreams, user)

    async def _large(self, ctx: _Context, user: User, server: str, uri: str) -> dict[str, Any]:
        """Return references to the stored contents of a resource that is too large for a message."""
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
        server, _ = self._upstreams.names.route(ctx.method, params)
        result = await self._ask(ctx, params, user)
        if "messages" not in result:
            # The server asks for input first.
            return result
        files = self._upstreams.files(user)
        call = GuardedCall(tool="prompts/get", server=server, files=files)
        shown = await asyncio.to_thread(without_tokens, without_our_words(result))
        return await self._upstreams.guard.prompt(shown, call)

    async def _ask(self, ctx: _Context, params: dict[str, Any], user: User) -> dict[str, Any]:
        """Return the answer of a request's target server; a foreign method goes to the only server."""
        server, inner = self._upstreams.names.route(ctx.method, params)
        upstream = self._upstreams.upstream(ctx, user, server)

        async def send(params: dict[str, Any]) -> dict[str, Any]:
            return await upstream.request(ctx.method, params)

        async with self._admitted(ctx, user):
            return await answered(send, inner, McpClient(ctx).request if has_sessions(ctx) else None)


def _announced(ctx: _Context, result: Mapping[str, Any], about: ServerInfo) -> dict[str, Any]:
    """Return FastMCP's announcement with the servers' capabilities, instructions and identity."""
    protocol = result.get("protocolVersion", ctx.protocol_version)
    of_era = "tasks" if protocol in HANDSHAKE_PROTOCOL_VERSIONS else "extensions"
    special = {
        key: about.capabilities[key]
        for key in ("completions", "experimental", of_era)
        if key in about.capabilities
    }
    able = result.get("capabilities", {})
    resources = {**(able.get("resources") or {}), "subscribe": True}
    # Hidden characters of a server are escaped in either place.
    named = visible_value(about.identity)
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
    """Ignore the notice of a drain, which ends only tool calls."""
