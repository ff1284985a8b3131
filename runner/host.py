"""The host's MCP server: a FastMCP application that relays requests to workers.

It never imports the tool file. Identity, transports, protocol eras and the sealing of request state
are FastMCP's and the SDK's; what reaches author code is answered by a worker, whose wire result is
handed on. Tool results pass through the contract on their way: `runner.call`, `runner.render`.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal

import mcp_types
from fastmcp import FastMCP
from fastmcp.server.dependencies import get_access_token
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from runner.artifacts.process import ArtifactFile
from runner.call import Request, execute, relay
from runner.cell import Cell
from runner.errors import CallError
from runner.identity import IdentityError, User, auth_provider, resolve
from runner.internals import (
    facts_of,
    is_ready,
    message_levels,
    notify_client,
    relay_innermost,
    request_client,
    use_input_schemas,
)
from runner.ladder import ClientRefusal
from runner.render import Delivery, inline_limit, render
from runner.request import RequestFacts, WireError
from runner.resources import SCHEME, read_artifact

__all__ = ["make_host"]

log = logging.getLogger(__name__)

DELIVERY_KEY = "toolcell/artifacts"

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

_MAX_TEXT = 4096

_UNCACHED = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
"""What every readable result of the modern era says of its own keeping."""

Transport = Literal["stdio", "http"]
DownloadUrl = Callable[[User, ArtifactFile], str]


def make_host(cell: Cell, *, transport: Transport, download_url: DownloadUrl | None) -> FastMCP:
    """Return the application that serves `cell`.

    Args:
        cell: The tool files, loaded.
        transport: What it will be served over.
        download_url: Makes download addresses, over HTTP.
    """
    catalog = cell.catalog
    app: FastMCP = FastMCP(
        catalog.name,
        instructions=catalog.instructions,
        version=catalog.version,
        website_url=catalog.website_url,
        icons=[mcp_types.Icon.model_validate(icon) for icon in catalog.icons] or None,
        auth=auth_provider(cell.settings) if transport == "http" else None,
    )
    relay_innermost(app, _Relay(app, cell, transport, download_url))
    schemas = {name: tool.parameters for name, tool in catalog.tools.items()}
    use_input_schemas(app, schemas.get)
    return app


class _Relay:
    """Answers what author code has to answer, inside the SDK's own middleware."""

    def __init__(
        self, app: FastMCP, cell: Cell, transport: Transport, download_url: DownloadUrl | None
    ) -> None:
        self._app = app
        self._cell = cell
        self._transport = transport
        self._download_url = download_url

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        if ctx.method == "initialize":
            return self._with_capabilities(await call_next(ctx))
        if ctx.request_id is None or not is_ready(ctx) or ctx.method not in (*_RELAYED, "tools/call"):
            return await call_next(ctx)
        request = self._request(ctx)
        if ctx.method == "tools/call":
            return await self._call_tool(ctx, request)
        uri = str(request.params.get("uri", ""))
        if ctx.method == "resources/read" and uri.startswith(SCHEME):
            contents = await read_artifact(self._cell.store, request.user, uri)
            return (
                contents if ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS else {**_UNCACHED, **contents}
            )
        try:
            return dict(await relay(self._cell, request))
        except WireError as error:
            raise _mcp_error(error) from error
        except CallError as error:
            raise MCPError(
                code=mcp_types.INTERNAL_ERROR, message=error.message, data=error.details
            ) from error

    async def _call_tool(self, ctx: ServerRequestContext[Any, Any], request: Request) -> dict[str, Any]:
        delivery = self._delivery(request.params, request.facts)
        try:
            completed = await execute(self._cell, request)
        except WireError as error:
            raise _mcp_error(error) from error
        if completed.interim is not None:
            return dict(completed.interim)
        url = self._download_url
        message = render(
            completed.processed,
            wire=completed.wire,
            output_schema=completed.spec.output_schema if completed.spec is not None else None,
            delivery=delivery,
            download_url=None if url is None else lambda file: url(request.user, file),
        )
        if ctx.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
            message.setdefault("resultType", "complete")
        return message

    def _request(self, ctx: ServerRequestContext[Any, Any]) -> Request:
        token = get_access_token()
        claims = None if token is None else {"client_id": token.client_id, **token.claims}
        try:
            user = resolve(
                self._cell.settings,
                transport=self._transport,
                claims=claims,
                host=self._cell.settings.host,
            )
        except IdentityError as error:
            raise MCPError(code=mcp_types.INVALID_REQUEST, message=str(error)) from error
        params = dict(ctx.params or {})
        facts = facts_of(ctx, token)
        return Request(
            user=user,
            method=ctx.method,
            params=params,
            facts=facts,
            client=_McpClient(ctx),
            levels=message_levels(self._app, ctx),
            inline_max_bytes=inline_limit(
                self._delivery(params, facts), self._cell.settings.inline_max_bytes
            ),
        )

    def _delivery(self, params: Mapping[str, Any], facts: RequestFacts) -> Delivery:
        """Decide how artifacts reach this client: by setting, else as it asks, else by its name."""
        settings = self._cell.settings
        if settings.artifact_delivery != "auto":
            return Delivery(settings.artifact_delivery)
        meta = params.get("_meta")
        asked = meta.get(DELIVERY_KEY) if isinstance(meta, Mapping) else None
        named = (facts.client_info or {}).get("name") in settings.inline_clients
        return Delivery.INLINE if asked == "inline" or (asked is None and named) else Delivery.REFERENCE

    def _with_capabilities(self, result: HandlerResult) -> HandlerResult:
        """Announce what the file's own server announces beside what every FastMCP server does."""
        if not isinstance(result, dict):
            return result
        own = self._cell.catalog.capabilities
        special = {key: own[key] for key in ("completions", "experimental") if key in own}
        return {**result, "capabilities": {**result["capabilities"], **special}}


class _McpClient:
    """The client of one request. A `runner.ladder.Client`."""

    def __init__(self, ctx: ServerRequestContext[Any, Any]) -> None:
        self._ctx = ctx

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        await notify_client(self._ctx, method, params)

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return await request_client(self._ctx, method, params)
        except MCPError as error:
            raise ClientRefusal(error.error.code, error.error.message) from error


def _mcp_error(error: WireError) -> MCPError:
    """Return a worker's JSON-RPC error as ours; what is malformed in it is replaced."""
    code, message = error.error.get("code"), str(error.error.get("message", ""))[:_MAX_TEXT]
    number = code if isinstance(code, int) and not isinstance(code, bool) else mcp_types.INTERNAL_ERROR
    return MCPError(code=number, message=message, data=error.error.get("data"))
