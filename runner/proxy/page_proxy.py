"""A proxy of its own for one server that a page of the Playground asked for, within a running server.

What users may take is one for both: a call that a page makes here waits and counts as one of its user's calls
there.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import httpx2
from fastmcp.client.transports import ClientTransport
from starlette.types import ASGIApp

from runner.http.context import Site
from runner.http.origins import protection
from runner.http.requests_per_user import token_user
from runner.playground.other_servers import Connect, ConnectedServer, Wanted, may_reach
from runner.playground.start_key import Passes, admit
from runner.protocol.endpoint import set_up_endpoint
from runner.protocol.internals.proxy import mend_messages_over_http
from runner.proxy.answer_bound import AnswerBound
from runner.proxy.http_transport import HttpTransport
from runner.proxy.server import make_proxy
from runner.proxy.targets import Target, target_of
from runner.proxy.upstreams import Upstreams
from runner.proxy.ways import ways_to
from runner.server.serve import ServedApplication
from runner.settings.settings import Settings
from runner.toolset.call_services import CallCounts
from runner.users.identity import User

__all__ = ["connecting"]


def connecting(site: Site, served: ServedApplication) -> Connect:
    """Return what connects to servers for pages of a site. A `runner.server.serve.Connecting`.

    Args:
        site: The site.
        served: What it serves; calls of other servers count as calls of that.
    """
    return partial(_connected, site, served.counts)


@dataclass(frozen=True, slots=True)
class _Connected:
    """A `runner.playground.other_servers.ConnectedServer`."""

    web: ASGIApp
    tier: str | None
    upstreams: Upstreams
    passes: Passes
    settings: Settings

    def credentials(self, user: User) -> Mapping[bytes, bytes]:
        if self.settings.auth.kind == "none":
            return {}
        return {b"authorization": f"Bearer {self.passes.give(user.name)}".encode()}

    def said(self) -> Mapping[str, Any] | None:
        [server] = self.upstreams.names.servers
        said = self.upstreams.said.get(server)
        return asdict(said) if said is not None else None

    async def fault(self) -> str | None:
        [server] = self.upstreams.names.servers
        return await self.upstreams.look(server)


@asynccontextmanager
async def _connected(
    site: Site, counts: CallCounts, wanted: Wanted, user: User
) -> AsyncIterator[ConnectedServer]:
    settings = site.settings
    target = target_of(wanted.name, wanted.entry)
    [way] = ways_to(settings, [target])
    if target.url:
        way = replace(way, transport=lambda _user, now: _checked(now, target))
    async with Upstreams.open(settings, [way], user, counts=counts) as upstreams:
        passes = Passes()
        app = make_proxy(upstreams, transport="http")
        admit(app, passes, settings.identity_claim)
        web = app.http_app(path="/mcp", **protection(settings))
        set_up_endpoint(
            web,
            max_bytes=settings.max_request_bytes,
            max_sessions=settings.max_sessions_per_user,
            user=partial(token_user, site),
            direct=None,
        )
        async with web.router.lifespan_context(web):
            tier = way.tier.value if way.tier is not None else None
            yield _Connected(web, tier, upstreams, passes, settings)


def _checked(settings: Settings, target: Target) -> ClientTransport:
    """Return a way to a server that leads nowhere else: each request is looked at, and none is redirected."""

    async def look(request: httpx2.Request) -> None:
        if not may_reach(settings, str(request.url)):
            raise httpx2.UnsupportedProtocol(f"pages may not connect to {request.url} (playground_connect)")

    bound = replace(AnswerBound.of(settings, target.name), look=look)
    mend_messages_over_http()
    return HttpTransport(target.url, target.headers, bound)
