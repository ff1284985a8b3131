"""The web application: MCP at `/mcp`, and beside it files, events, sessions and health.

FastMCP's application is the frame, so that its check of bearer tokens and of `Host` and `Origin` stands
in front of every route.
"""

from collections.abc import Sequence
from importlib.metadata import version

from fastmcp import FastMCP
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from runner.direct import Answer
from runner.errors import CallError
from runner.http import browser, downloads, files, health, stream
from runner.http.answers import Refusal, fails, refuses
from runner.http.endpoint import set_up_endpoint
from runner.http.origins import protection
from runner.http.readiness import Readiness
from runner.http.shares import Shares
from runner.http.site import Site
from runner.isolation import in_force

__all__ = ["make_web"]


def make_web(
    mcp: FastMCP, site: Site, more: Sequence[BaseRoute] = (), *, direct: Answer | None = None
) -> Starlette:
    """Return the application that serves `mcp` and the files of `site`.

    Args:
        mcp: The MCP server.
        site: What the routes beside it work with.
        more: Further routes.
        direct: Answers usual calls without `mcp`, where they need nothing of it.
    """
    tier = (site.tier or in_force(site.settings)).value
    web = mcp.http_app(path="/mcp", middleware=[Middleware(Shares, site=site)], **protection(site.settings))
    web.router.routes.extend(
        [
            *health.routes(tier=tier, version=version("toolcell"), faults=Readiness(site).faults),
            # Before the routes that take any key.
            *downloads.routes(site.tokens, site.library, clock=site.clock),
            *files.routes(site),
            *browser.routes(site),
            *stream.routes(site),
            *more,
        ]
    )
    web.add_exception_handler(Refusal, refuses)
    web.add_exception_handler(CallError, refuses)
    web.add_exception_handler(Exception, fails)
    set_up_endpoint(web, max_bytes=site.settings.max_request_bytes, direct=direct)
    return web
