"""HTTP routes that a tool file adds to its server (`custom_route`), answered in a worker of its user.

The host knows only their paths, and its own routes have precedence. Callers of the tools may use them, and
nobody else. The response is made by an author's code, on the origin of this server's own pages: so a browser
gets it in a sandbox, without a cookie, and with harmless headers only.

Source: Content Security Policy Level 3, `sandbox`; `docs/serving.md`.
"""

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pybase64
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, NoMatchFound, Route
from starlette.types import Receive, Scope, Send

from runner.http.context import Site
from runner.http.identify import identify
from runner.http.responses import Refusal
from runner.http.route_answers import route_response
from runner.http.wrong_keys import spare_tokens
from runner.users.identity import User

__all__ = ["AuthorRoutes", "Known", "hidden"]

Ask = Callable[[User, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
Known = Sequence[tuple[str, tuple[str, ...]]]

_MOST_BYTES = 16 * 1024 * 1024
# The cookie is a browser's key to this server, and not the file's. An answer that is compressed would be sent
# without `Content-Encoding`, and could not be read.
_NOT_PASSED_ON = frozenset({"accept-encoding", "cookie"})


class AuthorRoutes(BaseRoute):
    """All routes of the files that are served, behind those of the host.

    Args:
        site: What the routes beside MCP work with.
        known: Says which paths there are now, each with its methods.
        ask: Has a request answered in a worker of a user.
    """

    def __init__(self, site: Site, known: Callable[[], Known], ask: Ask) -> None:
        self._site = site
        self._known = known
        self._ask = ask
        self._compiled_of: Known | None = None
        self._compiled: Sequence[Route] = ()

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether a request is for one of them."""
        found = [route.matches(scope)[0] for route in self._routes()]
        return max(found, key=lambda match: match.value, default=Match.NONE), {}

    def _routes(self) -> Sequence[Route]:
        """Return the current routes; compiled again only when they change."""
        known = self._known()
        if known != self._compiled_of:
            self._compiled_of, self._compiled = known, compiled(known)
        return self._compiled

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        """Raise `NoMatchFound`: the host builds no URLs, and the router tries the next route."""
        raise NoMatchFound(name, path_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope, receive)
        user = await identify(self._site, request)
        # From here on a refusal is the file's own, of something that is not a token of ours.
        spare_tokens(request)
        request_facts = {
            "method": request.method,
            "path": request.url.path,
            "query": request.url.query,
            "headers": [
                [name, value] for name, value in request.headers.items() if name not in _NOT_PASSED_ON
            ],
            "body": pybase64.b64encode(await _body(request)).decode(),
        }
        answer = await self._ask(user, request_facts)
        await route_response(answer, method=request.method, url=str(request.url))(scope, receive, send)


def compiled(known: Known) -> list[Route]:
    """Return routes that match the paths; without malformed paths, which a hostile file may have."""
    found = []
    for path, methods in known:
        with contextlib.suppress(AssertionError, ValueError):
            found.append(Route(path, endpoint=_nobody, methods=list(methods) or None))
    return found


def hidden(known: Known, before: Sequence[BaseRoute]) -> list[str]:
    """Return the paths that are unreachable, because a route of the host has precedence."""
    scopes = [
        (path, {"type": "http", "method": method, "path": path, "root_path": "", "headers": []})
        for path, methods in known
        for method in methods or ("GET",)
    ]
    taken = {path for path, scope in scopes if any(route.matches(scope)[0] is Match.FULL for route in before)}
    return sorted(taken)


async def _nobody(_request: Request) -> Response:
    raise NotImplementedError("a path is looked for, and never asked here")


async def _body(request: Request) -> bytes:
    read = bytearray()
    async for part in request.stream():
        read += part
        if len(read) > _MOST_BYTES:
            raise Refusal(413, f"a route of a tool file takes {_MOST_BYTES} bytes; put files into My Files")
    return bytes(read)
