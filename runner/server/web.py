"""The web application: MCP at `/mcp`, and beside it files, events, sessions and health.

FastMCP's application is the frame, so that its check of bearer tokens and of `Host` and `Origin` stands
in front of every route. In front of that stands what every answer has in common.
"""

from collections.abc import Callable, Sequence
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
from runner.http.internals.endpoint import change_middleware
from runner.http.login_pace import LoginPace
from runner.http.origins import KnownOrigins, for_pages, protection, with_memory
from runner.http.readiness import Readiness
from runner.http.requests_per_user import RequestsPerUser, token_user
from runner.http.response_headers import ResponseHeaders
from runner.http.responses import Refusal, fails, left, refuses
from runner.http.token_ends import EndsWithToken
from runner.http.under_way import EndsWithSession, UnderWay
from runner.http.wrong_keys import WrongKeys
from runner.protocol.direct import Answerer
from runner.protocol.endpoint import set_up_endpoint
from runner.settings.isolation import in_force
from runner.users.resource import LOGINS, MCP_PATH, metadata_url
from runner.users.token_checks import tokens_fault

__all__ = ["make_web"]


def make_web(
    mcp: FastMCP,
    site: Site,
    more: Sequence[BaseRoute] = (),
    *,
    ready: Readiness | None = None,
    direct: Answerer | None = None,
    front: Callable[[UnderWay], Sequence[Middleware]] = lambda _: (),
) -> Starlette:
    """Return the application that serves `mcp` and the files of `site`.

    Args:
        mcp: The MCP server.
        site: What the routes beside it work with.
        more: Further routes.
        ready: Says whether a call would work now; None: what asks `site` and the provider of `mcp`.
        direct: Answers usual calls without `mcp`, where they need nothing of it.
        front: Makes what stands in front of the check of tokens, of what is under way in browser sessions.
    """
    under_way = UnderWay()
    tier = (site.tier or in_force(site.settings)).value
    behind_tokens = [
        *_challenges(mcp, site),
        Middleware(RequestsPerUser, site=site),
        *([] if mcp.auth is None else [Middleware(EndsWithToken, clock=site.clock)]),
    ]
    ready = ready or Readiness.of_site(site, identity=partial(tokens_fault, mcp.auth))
    web = mcp.http_app(path=MCP_PATH, middleware=behind_tokens, **protection(site.settings))
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
    outer = [
        Middleware(ResponseHeaders, settings=site.settings),
        Middleware(WrongKeys, claims=site.settings.identity_claim, hear=site.observers.logins_refused),
        *([Middleware(LoginPace)] if site.settings.auth.kind in LOGINS else ()),
        Middleware(KnownOrigins, settings=site.settings),
        *for_pages(site.settings),
        Middleware(EndsWithSession, site=site, under_way=under_way),
        *front(under_way),
    ]
    change_middleware(web, with_memory, outer)
    set_up_endpoint(
        web,
        max_bytes=site.settings.max_request_bytes,
        max_sessions=site.settings.max_sessions_per_user,
        user=partial(token_user, site),
        direct=direct,
    )
    return web


def _challenges(mcp: FastMCP, site: Site) -> list[Middleware]:
    """Return what asks for scopes and names where to log in, where there is either."""
    required = () if mcp.auth is None else tuple(mcp.auth.required_scopes)
    metadata = metadata_url(site.settings)
    if not required and metadata is None:
        return []
    return [Middleware(Challenges, required=required, metadata=metadata)]
