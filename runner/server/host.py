"""The host's MCP server: a FastMCP application that relays requests to workers.

It never imports the tool file. Identity, transports, protocol versions and the sealing of request state are
FastMCP's and the SDK's. Requests for author code are answered by a worker, whose wire result is passed on.
Tool results are converted by the contract on the way: `runner.call`, `runner.steps.client_message`.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, cast

import mcp_types
from fastmcp import FastMCP
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.routing import BaseRoute

from runner.call import Request, ask_route, execute, relay
from runner.contract.own_paths import OwnPaths
from runner.contract.unexpected_errors import unexpected
from runner.contract.widget_dialects import NO_WIDGETS, is_for_page
from runner.errors import CallError
from runner.files.my_files import SCHEME
from runner.http.author_routes import AuthorRoutes, hidden
from runner.http.context import Site
from runner.output_guard.guard import GuardedCall, OutputGuard
from runner.protocol.artifact_resources import read_artifact
from runner.protocol.artifact_tools import READING, offered, reading_result
from runner.protocol.eras import in_era_of
from runner.protocol.failed_requests import answer_failures
from runner.protocol.internals.answer import is_refusal, sealed_question
from runner.protocol.internals.connection import connection_levels, is_ready, message_levels
from runner.protocol.internals.host import relay_innermost, say_version, use_input_schemas
from runner.protocol.internals.results import mend_results
from runner.protocol.result_messages import (
    DownloadUrl,
    ResultMessages,
    failed_result,
    inline_limit_of,
    redacted_error,
    redacted_result,
)
from runner.protocol.sender import McpClient, Transport, asker, direct_sender, newcomer, request_facts
from runner.protocol.subscriptions import Subscriptions, announced
from runner.protocol.tool_calls import LiveSession, LiveSessions, ToolCall
from runner.protocol.visible_offers import visible_introduction, visible_list
from runner.server.code_mode import CodeMode, Front, ToolsOfCode
from runner.server.extras import EXTRAS, Extras
from runner.server.files_block import with_descriptions, with_instructions
from runner.server.mcp_tasks import EXTENSION, McpTasks
from runner.server.own_resource_tools import OwnResources
from runner.settings.isolation import ISOLATION_META, layers_of
from runner.steps.authorization import (
    authorize_scopes,
    authorize_widget,
    callable_tools,
    challenged,
    with_schemes,
)
from runner.steps.listener import ToolRequests
from runner.steps.request import REPORT, wants_report
from runner.steps.verdict import denial_facts
from runner.toolset.call_services import CallServices
from runner.toolset.hidden_identity import without_identity
from runner.toolset.toolset import Toolset
from runner.users.identity import User, auth_provider, unused_auth
from runner.users.resource import metadata_url
from runner.worker.wire import WireError

__all__ = ["DownloadUrl", "front_of", "make_host"]

log = logging.getLogger(__name__)

_MOST_PAGES = 100
_RELAYED = frozenset(
    {
        "tools/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "prompts/list",
        "prompts/get",
        "completion/complete",
        "server/discover",
    }
)

_LISTS = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}
"""Key of the items of each list."""

_MAX_TEXT = 4096


class Host(FastMCP):
    """The application.

    Attributes:
        direct: Answers tool calls that do not need the application.
    """

    direct: "_Relay"
    _toolset: Toolset

    def author_routes(self, site: Site) -> AuthorRoutes:
        """Return the HTTP routes that the files add."""
        toolset = self._toolset
        return AuthorRoutes(site, lambda: toolset.catalog.routes, partial(ask_route, toolset))

    def hidden_routes(self, before: Sequence[BaseRoute]) -> list[str]:
        """Return the paths of those that are hidden by a route of ours."""
        return hidden(self._toolset.catalog.routes, before)


def make_host(toolset: Toolset, download_url: DownloadUrl | None, *, transport: Transport) -> Host:
    """Return the application that serves `toolset`.

    Args:
        toolset: The tool files, loaded.
        download_url: Makes download addresses, over HTTP.
        transport: What it will be served over.
    """
    catalog = toolset.catalog
    app = Host(
        catalog.name,
        instructions=catalog.instructions,
        version=catalog.version,
        website_url=catalog.website_url,
        icons=[mcp_types.Icon.model_validate(icon) for icon in catalog.icons] or None,
        auth=auth_provider(toolset.settings, catalog.auth) if transport == "http" else None,
    )
    say_version(app, catalog.version)
    unused = unused_auth(toolset.settings, catalog.auth) if transport == "http" else None
    if unused is not None:
        log.warning("file auth ignored", extra={"reason": unused})
    own_paths = OwnPaths.of(toolset.settings, toolset.named_files)
    app._toolset = toolset
    app.direct = relay = _Relay(app, toolset, transport, download_url, own_paths)
    front = front_of(app, relay, toolset, transport, download_url, own_paths)
    relay.shadowed = front.names if isinstance(front, CodeMode) else frozenset()
    relay_innermost(app, front, around=answer_failures(own_paths))
    lists_files = toolset.settings.extras == "descriptions"
    subscriptions = Subscriptions(
        toolset.events, relay.user_of, lists_files=lists_files, has=relay.has_resource, tasks=relay.tasks
    )
    subscriptions.offer(app)
    # Looked up each time: `runner dev` reloads the files.
    use_input_schemas(app, lambda name: _parameters(toolset, name))
    return app


def front_of(
    app: FastMCP,
    front: Front,
    services: CallServices,
    transport: Transport,
    download_url: DownloadUrl | None,
    own_paths: OwnPaths,
) -> Front:
    """Return the front for a server's clients: the server's, or that of code mode, which wraps it.

    Args:
        app: The application.
        front: Front of the server.
        services: The services of the server.
        transport: Transport of the server.
        download_url: Makes download addresses, over HTTP.
        own_paths: Paths that clients must not see.
    """
    code = services.code
    if not isinstance(code, Toolset):
        return front
    relay = _Relay(app, code, transport, download_url, own_paths)
    relay.tools_of = partial(ToolsOfCode, front)
    return CodeMode(front, relay, frozenset(code.catalog.tools))


class _Relay:
    """Front that relays requests for author code, inside the SDK's own middleware.

    Attributes:
        tasks: Calls whose clients do not wait for them.
        shadowed: Names of tools that another front answers.
        tools_of: Returns the tools that code of a request may call, if it may call any.
    """

    shadowed: frozenset[str] = frozenset()
    tools_of: Callable[[ServerRequestContext[Any, Any]], ToolRequests] | None = None

    def __init__(
        self,
        app: FastMCP,
        toolset: Toolset,
        transport: Transport,
        download_url: DownloadUrl | None,
        own_paths: OwnPaths,
    ) -> None:
        self._app = app
        self._toolset = toolset
        self._transport = transport
        self._own_paths = own_paths
        self._extras = EXTRAS if toolset.settings.has_extras else Extras()
        self._guard = OutputGuard.of(toolset.settings)
        self._messages = ResultMessages(
            settings=toolset.settings, guard=self._guard, own_paths=own_paths, download_url=download_url
        )
        self._resources = OwnResources(toolset, self._guard)
        self._sessions = LiveSessions()
        self.connected: Callable[[str | None], LiveSession | None] = self._sessions.known.get
        self.tasks = McpTasks(
            self._call_tool,
            polls=lambda tool: toolset.catalog.tasks.get(tool),
            total_s=lambda tool: toolset.effective(tool).deadlines.total_s,
            # Called late: the address of links must be known first.
            tokens=lambda: toolset.links.tokens,
        )
        mend_results()

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        self._sessions.note(ctx)
        if ctx.method == "initialize":
            result = self._with_capabilities(await call_next(ctx))
            if not isinstance(result, dict):
                return result
            user = newcomer(self._toolset.settings, self._transport)
            return visible_introduction(await with_instructions(result, self._toolset, user))
        if ctx.request_id is None or not is_ready(ctx) or not self._is_relayed(ctx.method):
            return await call_next(ctx)
        request = self._request(ctx)
        if ctx.method == "tools/call":
            return await self._called(ctx, request)
        if self.tasks.takes(ctx.method):
            return await self.tasks.answer(request)
        try:
            return await visible_list(ctx.method, await self._relayed(ctx, request))
        except WireError as error:
            raise _mcp_error(error) from error
        except CallError as error:
            details = {"error_code": error.code.name, **error.details}
            raise MCPError(code=mcp_types.INTERNAL_ERROR, message=error.message, data=details) from error

    def _is_relayed(self, method: str) -> bool:
        catalog = self._toolset.catalog
        is_of_tasks = self.tasks.takes(method) and bool(catalog.tasks)
        return method == "tools/call" or method in _RELAYED or method in catalog.methods or is_of_tasks

    async def _called(self, ctx: ServerRequestContext[Any, Any], request: Request) -> dict[str, Any]:
        """Answer a tool call: a tool of ours here, any other in a worker."""
        name = str(request.params.get("name"))
        if self._reads_back(name) or self._resources.has(name):
            try:
                authorize_scopes(name, self._toolset.settings.scopes(name), request.facts)
                authorize_widget(name, NO_WIDGETS, request.params)
            except CallError as error:
                return failed_result(error, protocol=request.facts.protocol)
        if self._reads_back(name):
            return in_era_of(ctx, await self._read_back(request))
        if self._resources.has(name):
            return in_era_of(ctx, await self._read_resources(ctx, request))
        return await self._call_or_task(request)

    def _call_or_task(self, request: Request) -> Awaitable[dict[str, Any]]:
        is_task = request.tool in self._toolset.catalog.tasks and self.tasks.wants(request)
        return self.tasks.begin(request) if is_task else self._call_tool(request)

    async def _relayed(self, ctx: ServerRequestContext[Any, Any], request: Request) -> dict[str, Any]:
        """Answer any request except a tool call: from the file first, then from our own items."""
        uri = str(request.params.get("uri", ""))
        if ctx.method == "resources/read" and uri.startswith(SCHEME):
            return in_era_of(ctx, await read_artifact(self._toolset.files(request.user), uri))
        if ctx.method == "resources/read" and (page := self._toolset.catalog.page(uri)) is not None:
            return in_era_of(ctx, page)
        try:
            answered = await relay(self._toolset, request)
            if ctx.method == "server/discover":
                discovered = self._with_tasks(announced(answered))
                introduced = await with_instructions(discovered, self._toolset, request.user)
                return visible_introduction(introduced)
            if ctx.method == "tools/list":
                listed = with_schemes(await self._without_identity(answered))
                listed = await with_descriptions(listed, self._toolset, request.user)
                shown = self._with_reading(listed)
                return callable_tools(shown, self._toolset.settings.scopes, request.facts)
            if ctx.method == "prompts/get" and "messages" in answered:
                return await self._guarded_prompt(request, answered)
            return self._extras.merged(ctx.method, answered)
        except WireError as error:
            ours = await self._ours(ctx, request, error.error.get("code"))
            if ours is None:
                raise
            return in_era_of(ctx, ours)

    async def _guarded_prompt(self, request: Request, answered: Mapping[str, Any]) -> dict[str, Any]:
        files = self._toolset.files(request.user, trace=request.id)
        return await self._guard.prompt(answered, GuardedCall(tool="prompts/get", files=files))

    async def _ours(
        self, ctx: ServerRequestContext[Any, Any], request: Request, code: object
    ) -> dict[str, Any] | None:
        """Return our answer if the file's server answers with this error code."""
        if code == mcp_types.METHOD_NOT_FOUND and ctx.method in _LISTS:
            # A server of the SDK without this list; our items exist nevertheless.
            return self._extras.merged(ctx.method, {_LISTS[ctx.method]: []})
        # The code of the file's server for an unknown name.
        if code != mcp_types.INVALID_PARAMS:
            return None
        return await self._extras.answer(ctx.method, request.params, self._toolset, request.user)

    async def has_resource(self, ctx: ServerRequestContext[Any, Any], uri: str) -> bool:
        """Return whether the files list a resource for the caller, or a template that begins like it."""
        request = self._request(ctx)
        listed = await self._listed(request, "resources/list", "resources")
        if any(item.get("uri") == uri for item in listed):
            return True
        templates = await self._listed(request, "resources/templates/list", "resourceTemplates")
        # No regular expression from the template: its author could make it run forever.
        beginnings = [str(item.get("uriTemplate")).partition("{") for item in templates]
        return any(brace and uri.startswith(beginning) for beginning, brace, _ in beginnings)

    async def _listed(self, request: Request, method: str, key: str) -> list[Mapping[str, Any]]:
        """Return the items that the files list; nothing if they cannot be queried."""
        found: list[Mapping[str, Any]] = []
        params: dict[str, Any] = {}
        for _ in range(_MOST_PAGES):
            try:
                asking = replace(request, method=method, params=params)
                page = await relay(self._toolset, asking)
            except (WireError, CallError):
                break
            items = page.get(key)
            found += [item for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []
            if not isinstance(page.get("nextCursor"), str):
                break
            params = {"cursor": page["nextCursor"]}
        return found

    def _with_tasks(self, discovered: dict[str, Any]) -> dict[str, Any]:
        """Declare tasks if a call may become one; the host keeps them."""
        capabilities = discovered.get("capabilities")
        if not self._toolset.catalog.tasks or not isinstance(capabilities, Mapping):
            return discovered
        extensions = {**(capabilities.get("extensions") or {}), EXTENSION: {}}
        return {**discovered, "capabilities": {**capabilities, "extensions": extensions}}

    def takes(self, tool: str) -> bool:
        """Return whether calls of a tool may be direct. A `runner.protocol.tool_calls.Answerer`."""
        spec = self._toolset.catalog.tools.get(tool)
        return spec is not None and not spec.mirrors_arguments and tool not in self.shadowed

    async def answer(self, call: ToolCall) -> dict[str, Any]:
        """Return the result of a direct call.

        Raises:
            MCPError: The answer is a JSON-RPC error.
        """
        user, facts = direct_sender(self._toolset.settings, self._toolset.links.tokens, call)
        connection = call.connection
        request = Request(
            user=user,
            method="tools/call",
            params=call.params,
            facts=facts,
            client=call,
            levels=frozenset() if connection is None else connection_levels(connection),
            inline_max_bytes=inline_limit_of(self._toolset.settings, call.params),
        )
        message = await self._call_or_task(request)
        if "requestState" not in message:
            return message
        sealed = await sealed_question(self._app, message, facts=facts, params=call.params)
        return dict(cast("Mapping[str, Any]", sealed))

    async def _call_tool(self, request: Request) -> dict[str, Any]:
        try:
            completed = await execute(self._toolset, request)
            if completed.interim is not None:
                return redacted_result(self._own_paths, dict(completed.interim))
            files = self._toolset.files(request.user, trace=request.id)
            # A session's list can differ from that of the file.
            listed = (completed.spec, self._toolset.catalog.tools.get(request.tool))
            for_page = all(spec is not None and spec.widgets.only_pages for spec in listed)
            for_page = for_page and is_for_page(request.params, request.facts.client_capabilities)
            message = await self._messages.of(completed, request, files, is_for_page=for_page)
            failure = completed.processed.failure
            if failure is not None:
                described = metadata_url(self._toolset.settings) if self._transport == "http" else None
                message = challenged(message, failure, resource_metadata=described)
            steps = request.steps
            worker = "fresh" if steps.is_fresh else "kept"
            isolation = {"tier": self._toolset.tier.value, "worker": worker}
            if steps.goes_on is not None:
                isolation["between_calls"] = "runs" if steps.goes_on else "stopped"
            message["_meta"] = {**message.get("_meta", {}), ISOLATION_META: isolation}
            if wants_report(request.params):
                message["_meta"][REPORT] = self._report(request)
            if request.facts.protocol not in HANDSHAKE_PROTOCOL_VERSIONS:
                message.setdefault("resultType", "complete")
            return redacted_result(self._own_paths, message)
        except WireError as error:
            raise redacted_error(self._own_paths, _mcp_error(error)) from error
        except MCPError as error:
            raise redacted_error(self._own_paths, error) from error
        except Exception as error:
            if is_refusal(error):
                raise
            failure = unexpected(error, call=request.id)
            return failed_result(failure, protocol=request.facts.protocol)

    def _report(self, request: Request) -> dict[str, Any]:
        """Return the report on a call for its caller."""
        settings, tool = self._toolset.settings, str(request.params.get("name"))
        outcome = request.steps.outcome
        found = () if outcome is None else outcome.denials
        denials = [denial_facts(denial, settings.homes) for denial in found]
        usage = {} if outcome is None else {"peak_bytes": outcome.memory_peak_bytes, "cpu_s": outcome.cpu_s}
        return {
            "call": request.id,
            "steps_ms": request.steps.in_ms(),
            **request.steps.spans(),
            "denials": self._own_paths.redact(denials),
            "usage": {name: value for name, value in usage.items() if value is not None},
            "layers": list(layers_of(self._toolset.tier)),
            "tier": self._toolset.tier.value,
            "deadlines": asdict(settings.deadlines(tool)),
            "limits": asdict(settings.limits(tool)),
        }

    def _reads_back(self, name: str) -> bool:
        return (
            self._toolset.settings.has_extras and name in READING and name not in self._toolset.catalog.tools
        )

    async def _read_back(self, request: Request) -> dict[str, Any]:
        files = self._toolset.files(request.user, trace=request.id)
        call = GuardedCall(tool=str(request.params.get("name")), files=files)
        answer = await reading_result(request.params, files)
        return await self._guard.message(answer, call, media_stay=False)

    async def _read_resources(self, ctx: ServerRequestContext[Any, Any], request: Request) -> dict[str, Any]:
        # In protocol 2026-07-28, each request identifies its client there.
        envelope = {key: item for key, item in request.params.items() if key == "_meta"}

        async def ask(method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
            asking = replace(ctx, method=method, params={**params, **envelope})
            return await self._relayed(asking, self._request(asking))

        files = self._toolset.files(request.user, trace=request.id)
        call = GuardedCall(tool=str(request.params.get("name")), files=files)
        return await self._resources.result(call, request.params.get("arguments"), ask)

    async def _without_identity(self, answered: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a list of tools without the parameter that we fill in: clients refuse calls without it."""
        settings, tools = self._toolset.settings, answered.get("tools")
        if not isinstance(tools, list):
            return answered
        return {**answered, "tools": await without_identity(tools, settings.username_parameter)}

    def _with_reading(self, answered: Mapping[str, Any]) -> dict[str, Any]:
        """Return a list of tools with ours: for reading resources, and contents removed from results."""
        known = self._toolset.catalog.tools
        reading = [tool for tool in offered(self._toolset.settings) if tool["name"] not in known]
        return Extras(listed={"tools": [*self._resources.tools(), *reading]}).merged("tools/list", answered)

    def user_of(self, ctx: ServerRequestContext[Any, Any]) -> User:
        """Return the user and session of a request."""
        return self._request(ctx).user

    def _request(self, ctx: ServerRequestContext[Any, Any]) -> Request:
        params = dict(ctx.params or {})
        return Request(
            user=asker(self._toolset.settings, self._toolset.links.tokens, self._transport, ctx),
            method=ctx.method,
            params=params,
            facts=request_facts(ctx),
            client=McpClient(ctx),
            levels=message_levels(ctx),
            inline_max_bytes=inline_limit_of(self._toolset.settings, params),
            tools=None if self.tools_of is None else self.tools_of(ctx),
        )

    def _with_capabilities(self, result: HandlerResult) -> HandlerResult:
        """Declare the capabilities of the file's own server besides those of every FastMCP server."""
        if not isinstance(result, dict):
            return result
        own = self._toolset.catalog.capabilities
        special = {key: own[key] for key in ("completions", "experimental") if key in own}
        return {**result, "capabilities": {**result["capabilities"], **special}}


def _parameters(toolset: Toolset, tool: str) -> Mapping[str, Any] | None:
    spec = toolset.catalog.tools.get(tool)
    return None if spec is None else spec.parameters


def _mcp_error(error: WireError) -> MCPError:
    """Return a worker's JSON-RPC error as ours; malformed parts are replaced."""
    code, message = error.error.get("code"), str(error.error.get("message", ""))[:_MAX_TEXT]
    number = code if isinstance(code, int) and not isinstance(code, bool) else mcp_types.INTERNAL_ERROR
    return MCPError(code=number, message=message, data=error.error.get("data"))
