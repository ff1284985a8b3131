"""HTTP routes that a tool file adds to its server (`custom_route`), answered in a worker of the caller.

The host knows only their paths, and its own routes take precedence. Only callers of the tools may use them.
An author's code makes the response, on the origin of this server's own pages. So browsers sandbox it, the
code receives no cookie, and only harmless headers pass.

Source: Content Security Policy Level 3, `sandbox`; `docs/serving.md`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pybase64
from starlette.requests import Request
from starlette.routing import BaseRoute, Match, NoMatchFound
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
# The cookie authenticates the browser to this server, not to the tool file. A compressed answer would be sent
# without `Content-Encoding`, and be unreadable.
_NOT_PASSED_ON = frozenset({"accept-encoding", "cookie"})


class AuthorRoutes(BaseRoute):
    """The routes of all served tool files, matched after those of the host.

    Args:
        site: Services of the routes beside MCP.
        known: Returns the current paths, each with its methods.
        ask: Runs a request in a worker of a user, and returns the answer.
    """

    def __init__(self, site: Site, known: Callable[[], Known], ask: Ask) -> None:
        self._site = site
        self._known = known
        self._ask = ask

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match a request by the text of a path before its first parameter; the worker's router decides."""
        # As a regular expression, the path of a hostile file could take the event loop hours.
        requested = scope["path"] if scope["type"] == "http" else ""
        for path, _ in self._known():
            literal, has_parameter, _ = path.partition("{")
            if requested.startswith(literal) and (has_parameter or requested == path):
                return Match.FULL, {}
        return Match.NONE, {}

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        """Raise `NoMatchFound`: the host builds no URLs, and the router tries the next route."""
        raise NoMatchFound(name, path_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope, receive)
        user = await identify(self._site, request)
        # From here on a 401 is the tool file's own, and does not concern a token of this server.
        spare_tokens(request.scope)
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


def hidden(known: Known, before: Sequence[BaseRoute]) -> list[str]:
    """Return the paths that are unreachable, because a route of the host has precedence."""
    scopes = [
        (path, {"type": "http", "method": method, "path": path, "root_path": "", "headers": []})
        for path, methods in known
        for method in methods or ("GET",)
    ]
    taken = {path for path, scope in scopes if any(route.matches(scope)[0] is Match.FULL for route in before)}
    return sorted(taken)


async def _body(request: Request) -> bytes:
    read = bytearray()
    async for part in request.stream():
        read += part
        if len(read) > _MOST_BYTES:
            raise Refusal(413, f"a route of a tool file takes {_MOST_BYTES} bytes; put files into My Files")
    return bytes(read)
