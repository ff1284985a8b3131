"""The web application: MCP at `/mcp`, and beside it files, events, sessions, the Playground and health.

FastMCP's application is the outer one, so that its check of bearer tokens precedes every route.
"""

import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib.metadata import version

from fastmcp import FastMCP
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from runner.errors import CallError
from runner.http import browser_session as browser
from runner.http import events as stream
from runner.http import files, link_downloads, readiness
from runner.http.challenges import Challenges
from runner.http.context import Site
from runner.http.gateway import Gateway, Peers
from runner.http.open_streams import EndsStreams, OpenStreams
from runner.http.origins import KnownOrigins, for_pages
from runner.http.readiness import Readiness
from runner.http.requests_per_user import RequestsPerUser, token_user
from runner.http.response_headers import ResponseHeaders
from runner.http.responses import Refusal, fails, left, refuses
from runner.http.under_way import EndsWithSession, UnderWay
from runner.http.wrong_keys import WrongKeys
from runner.playground.config import Playground
from runner.playground.routes import routes as playground_routes
from runner.playground.session_auth import PlaygroundAuth
from runner.playground.start_key import Passes, admit
from runner.protocol.endpoint import set_up_endpoint
from runner.server.host import Host
from runner.settings.isolation import in_force
from runner.users.resource import MCP_PATH, metadata_url
from runner.users.token_checks import tokens_fault

__all__ = ["build_app"]

log = logging.getLogger(__name__)


def build_app(
    mcp: FastMCP,
    site: Site,
    *,
    playground: Playground | None = None,
    more: Sequence[BaseRoute] = (),
    ready: Readiness | None = None,
    streams: OpenStreams | None = None,
    session_ended: Callable[[str], Awaitable[None]] | None = None,
    directly: bool = True,
) -> Starlette:
    """Return the application that serves `mcp`, the files of `site`, and the routes that tool files add.

    Args:
        mcp: The MCP server.
        site: Services of the routes beside it.
        playground: The Playground beside it, if there is one.
        more: Further routes.
        ready: Checks for `/readyz`; None: those of `site` and the provider of `mcp`.
        streams: Registry of open streams, for a server of our own; None inside another ASGI server, which
            reads forwarded addresses itself.
        session_ended: Awaited with the id of each MCP session that a client has deleted.
        directly: Whether usual calls are answered without the SDK.
    """
    settings, under_way = site.settings, UnderWay()
    has_gateway = settings.auth.kind == "gateway"
    passes = Passes() if playground is None else playground.passes
    # The page logs in like the server's clients, without passes.
    of_page = () if playground is None else playground_routes(site, playground, mcp.auth)
    if has_gateway or playground is not None:
        admit(mcp, passes, settings.identity_claim)
    required = () if mcp.auth is None else tuple(mcp.auth.required_scopes)
    metadata, trusted = metadata_url(settings), os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1")

    # Each request passes these, the first one outermost. Forwarded addresses are trusted as by uvicorn, but
    # after the address of the peer is recorded.
    before_authentication = [
        *([Middleware(Peers)] if streams is not None and has_gateway else []),
        *([Middleware(ProxyHeadersMiddleware, trusted_hosts=trusted)] if streams is not None else []),
        Middleware(ResponseHeaders, settings=settings),
        Middleware(WrongKeys, claims=settings.identity_claim, hear=site.observers.logins_refused),
        Middleware(KnownOrigins, settings=settings),
        *for_pages(settings),
        Middleware(EndsWithSession, site=site, under_way=under_way),
        *([Middleware(Gateway, settings=settings, give=passes.give)] if has_gateway else []),
        *(
            []
            if playground is None
            else [Middleware(PlaygroundAuth, site=site, passes=passes, under_way=under_way)]
        ),
    ]
    # FastMCP's own follow here: request context, authentication.
    after_authentication = [
        *([Middleware(Challenges, required=required, metadata=metadata)] if required or metadata else []),
        Middleware(RequestsPerUser, site=site),
        Middleware(EndsStreams, streams=streams or OpenStreams(), clock=site.clock),
    ]

    ready = ready or Readiness.of_site(site, identity=partial(tokens_fault, mcp.auth))
    # `KnownOrigins` replaces FastMCP's guard.
    web = mcp.http_app(path=MCP_PATH, middleware=after_authentication, host_origin_protection=False)
    for each in reversed(before_authentication):
        web.add_middleware(each.cls, *each.args, **each.kwargs)
    web.router.routes.extend(
        [
            *readiness.routes(
                tier=(site.tier or in_force(settings)).value, version=version("toolcell"), faults=ready.faults
            ),
            # Before the routes that take any key.
            *link_downloads.routes(site.tokens, site.library, clock=site.clock),
            *files.routes(site),
            *browser.routes(site, under_way),
            *stream.routes(site),
            *of_page,
            *more,
        ]
    )
    if isinstance(mcp, Host):
        for path in mcp.hidden_routes(web.router.routes):
            log.warning("file route shadowed", extra={"path": path})
        web.router.routes.append(mcp.author_routes(site))
    answers = refuses(site.own_paths)
    web.add_exception_handler(Refusal, answers)
    web.add_exception_handler(CallError, answers)
    web.add_exception_handler(ClientDisconnect, left)
    web.add_exception_handler(Exception, fails)
    set_up_endpoint(
        web,
        max_bytes=settings.max_payload_bytes,
        user=partial(token_user, site),
        direct=mcp.direct if directly and isinstance(mcp, Host) else None,
        session_ended=session_ended,
    )
    return web
