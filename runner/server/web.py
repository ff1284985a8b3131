"""The web application: MCP at `/mcp`, and beside it files, events, sessions and health.

FastMCP's application is the frame, so that its check of bearer tokens and of `Host` and `Origin` stands
in front of every route. In front of that stands what every answer has in common.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib.metadata import version

from fastmcp import FastMCP
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute

from runner.errors import CallError
from runner.http import browser_session as browser
from runner.http import events as stream
from runner.http import files, health, link_downloads
from runner.http.challenges import Challenges
from runner.http.context import Site
from runner.http.gateway import Gateway
from runner.http.internals.endpoint import change_middleware
from runner.http.origins import KnownOrigins, for_pages, protection, with_memory
from runner.http.readiness import Readiness
from runner.http.requests_per_user import RequestsPerUser, token_user
from runner.http.response_headers import ResponseHeaders
from runner.http.responses import Refusal, fails, left, refuses
from runner.http.session_ends import SessionEnds
from runner.http.token_ends import EndsWithToken
from runner.http.under_way import EndsWithSession, UnderWay
from runner.http.wrong_keys import WrongKeys
from runner.playground.session_auth import PlaygroundAuth
from runner.playground.start_key import Passes
from runner.protocol.endpoint import set_up_endpoint
from runner.protocol.tool_calls import Answerer
from runner.settings.isolation import in_force
from runner.users.resource import MCP_PATH, metadata_url
from runner.users.token_checks import tokens_fault

__all__ = ["make_web"]


def make_web(
    mcp: FastMCP,
    site: Site,
    more: Sequence[BaseRoute] = (),
    *,
    ready: Readiness | None = None,
    direct: Answerer | None = None,
    under_way: UnderWay | None = None,
    passes: Passes | None = None,
    has_page: bool = False,
    session_ended: Callable[[str], Awaitable[None]] | None = None,
) -> Starlette:
    """Return the application that serves `mcp` and the files of `site`.

    Args:
        mcp: The MCP server.
        site: What the routes beside it work with.
        more: Further routes.
        ready: Says whether a call would work now; None: what asks `site` and the provider of `mcp`.
        direct: Answers usual calls without `mcp`, where they need nothing of it.
        under_way: Requests in progress by browser session; None makes a new registry.
        passes: Bearer tokens for users whom a gateway or the Playground's page names; None without either.
        has_page: Whether the Playground's page is served.
        session_ended: Awaited with the id of each MCP session that a client has deleted.
    """
    settings = site.settings
    under_way = under_way or UnderWay()
    tier = (site.tier or in_force(settings)).value
    required = () if mcp.auth is None else tuple(mcp.auth.required_scopes)
    metadata = metadata_url(settings)

    # Each request passes these, the first one outermost. `serve` puts forwarded addresses and the end of open
    # streams in front, where uvicorn has them.
    before_authentication = [
        Middleware(ResponseHeaders, settings=settings),
        Middleware(WrongKeys, claims=settings.identity_claim, hear=site.observers.logins_refused),
        Middleware(KnownOrigins, settings=settings),
        *for_pages(settings),
        Middleware(EndsWithSession, site=site, under_way=under_way),
    ]
    if passes is not None and settings.auth.kind == "gateway":
        before_authentication += [Middleware(Gateway, settings=settings, give=passes.give)]
    if passes is not None and has_page:
        before_authentication += [Middleware(PlaygroundAuth, site=site, passes=passes, under_way=under_way)]
    if session_ended is not None:
        # Behind the page's authentication, so that sessions of the page count too.
        before_authentication += [Middleware(SessionEnds, ended=session_ended)]
    # FastMCP's own follow here: Host and Origin guard, request context, authentication.
    after_authentication = []
    if required or metadata is not None:
        after_authentication += [Middleware(Challenges, required=required, metadata=metadata)]
    after_authentication += [Middleware(RequestsPerUser, site=site)]
    if mcp.auth is not None:
        after_authentication += [Middleware(EndsWithToken, clock=site.clock)]

    ready = ready or Readiness.of_site(site, identity=partial(tokens_fault, mcp.auth))
    web = mcp.http_app(path=MCP_PATH, middleware=after_authentication, **protection(settings))
    web.router.routes.extend(
        [
            *health.routes(tier=tier, version=version("toolcell"), faults=ready.faults),
            # Before the routes that take any key.
            *link_downloads.routes(site.tokens, site.library, clock=site.clock),
            *files.routes(site),
            *browser.routes(site, under_way),
            *stream.routes(site),
            *more,
        ]
    )
    answers = refuses(site.own_paths)
    web.add_exception_handler(Refusal, answers)
    web.add_exception_handler(CallError, answers)
    web.add_exception_handler(ClientDisconnect, left)
    web.add_exception_handler(Exception, fails)
    change_middleware(web, with_memory, before_authentication)
    set_up_endpoint(
        web,
        max_bytes=settings.max_request_bytes,
        user=partial(token_user, site),
        direct=direct,
    )
    return web
