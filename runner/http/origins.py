"""Allowed `Host` and `Origin` of the HTTP server, against DNS rebinding and foreign web pages.

FastMCP's guard checks `Host`: the server's own address, the loopback names and `allowed_hosts` are accepted.
But it accepts pages of every port of this machine, and matches patterns. So `Origin` is checked here,
on every route and with any credentials: it must be the origin of this server or one of `allowed_origins`,
exactly as a browser sends it. Other clients send none.

Source: MCP specification 2025-11-25, "Transports", security warning; RFC 6454, section 6; `docs/serving.md`.
"""

from urllib.parse import urlsplit

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from runner.http.internals.endpoint import HostOriginGuardMiddleware
from runner.http.responses import refused
from runner.settings.parts import ServerSettings

__all__ = [
    "KnownOrigins",
    "for_pages",
    "is_own",
    "over_https",
]

_MOST_ACCEPTED = 256
_DECIDING = frozenset({b"host", b"origin"})

_FOREIGN = (
    "a page of another site sent this request: its Origin is neither this server's nor in allowed_origins; "
    "open this server's own page, or name the page's origin in allowed_origins, as a browser writes it"
)


def over_https(settings: ServerSettings, request: Request) -> bool:
    """Return whether browsers reach this server over https, directly or through a proxy.

    By default the web server trusts `X-Forwarded-Proto` only of a proxy on the loopback address.
    """
    return request.url.scheme == "https" or (settings.public_url or "").startswith("https:")


def is_own(settings: ServerSettings, request: Request, origin: str) -> bool:
    """Return whether an origin is this server's, by the name under which the request reached it."""
    host = request.headers.get("host", "")
    own = {f"{request.url.scheme}://{host}"}
    if over_https(settings, request):
        own.add(f"https://{host}")
    if settings.public_url is not None:
        # A proxy may have sent another `Host`.
        public = urlsplit(settings.public_url)
        own.add(f"{public.scheme}://{public.netloc}")
    return origin in own


class KnownOrigins(HostOriginGuardMiddleware):
    """Middleware that refuses a request whose `Host` or `Origin` is neither this server's nor allowed.

    Accepted values are cached: every request of a client has the same ones, and parsing them takes longer
    than all other checks of a request.

    Args:
        app: The application.
        settings: The effective settings.
    """

    def __init__(self, app: ASGIApp, *, settings: ServerSettings) -> None:
        own = [] if settings.host in ("0.0.0.0", "::") else [settings.host]  # noqa: S104
        # The mode "auto" would leave a server on 0.0.0.0 open to a page that rebinds its name to it.
        super().__init__(
            self._accept,
            allowed_hosts=[*own, *settings.allowed_hosts],
            allowed_origins=["*"],
            mode="strict",
        )
        self._behind = app
        self._settings = settings
        self._accepted: set[tuple[object, ...]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or _decides(scope) in self._accepted:
            await self._behind(scope, receive, send)
        elif self._is_known(scope):
            await super().__call__(scope, receive, send)
        else:
            await refused(403, _FOREIGN)(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        request = Request(scope)
        match request.headers.getlist("origin"):
            case []:
                return True
            case [origin]:
                return origin in self._settings.allowed_origins or is_own(self._settings, request, origin)
            case _:
                return False

    async def _accept(self, scope: Scope, receive: Receive, send: Send) -> None:
        if len(self._accepted) < _MOST_ACCEPTED:
            self._accepted.add(_decides(scope))
        await self._behind(scope, receive, send)


def _decides(scope: Scope) -> tuple[object, ...]:
    """Return the parts of a request that are checked."""
    named = [(name, value) for name, value in scope["headers"] if name in _DECIDING]
    return (scope.get("scheme"), *(scope.get("server") or ()), *named)


def for_pages(settings: ServerSettings) -> list[Middleware]:
    """Return the CORS middleware for allowed origins.

    Pages of these origins may not send cookies, and use a token instead.
    """
    if not settings.allowed_origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["*"],
            expose_headers=["Mcp-Session-Id", "WWW-Authenticate", "Retry-After", "Content-Disposition"],
        )
    ]
