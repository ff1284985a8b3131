"""Bounds of what one user has in flight: requests (open streams, uploads, calls that wait) and their bodies.

It applies after the check of tokens, since the user is unknown before; the proxy in front limits
connections before that. Health checks always pass.

Source: RFC 6585, section 4 (429).
"""

import contextlib
from collections import Counter

from fastmcp.server.dependencies import get_access_token
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.http.context import Site
from runner.http.health import PATHS
from runner.http.held_bodies import HeldBodies
from runner.http.identify import browser_session
from runner.http.responses import refused
from runner.users.identity import IdentityError, resolve
from sandbox.host.server_memory import find_server_memory

__all__ = ["MOST_REQUESTS", "RequestsPerUser", "token_user"]

MOST_REQUESTS = 100
"""Requests of one user in flight: a browser has ten at most, and each holds a connection and its body."""


class RequestsPerUser:
    """Middleware that refuses a request of a user with too many in flight.

    Args:
        app: The application.
        site: Whose users they are.
    """

    def __init__(self, app: ASGIApp, *, site: Site) -> None:
        self._app = app
        self._site = site
        self._under_way: Counter[str] = Counter()
        self._bodies = HeldBodies(
            max_payload_bytes=site.settings.max_payload_bytes,
            memory_bytes=find_server_memory().limit_bytes,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or scope["path"] in PATHS:
            await self._app(scope, receive, send)
            return
        user = token_user(self._site)
        if user is None and b"cookie" in dict(scope["headers"]):
            known = browser_session(
                self._site.settings, self._site.tokens, Request(scope), now=self._site.clock()
            )
            user = None if known is None else known.name
        if user is not None and self._under_way[user] >= MOST_REQUESTS:
            sentence = f"{MOST_REQUESTS} requests of yours are under way; wait for one, or end one"
            await refused(429, sentence)(scope, receive, send)
            return
        with self._bodies.one(user, scope, receive, send) as body:
            # Frameworks leave reference cycles with these two, and tracebacks of a wait for the disconnect.
            # They keep nothing of a body that has ended.
            held = [body]

            async def receive_held() -> Message:
                return await (held[0].receive if held and not held[0].is_whole else receive)()

            async def send_held(message: Message) -> None:
                if held:
                    await held[0].send(message)

            # Requests without a user are refused further on, and at once, or log in.
            key = user or ""
            self._under_way[key] += 1
            try:
                await self._app(scope, receive_held, send_held)
            finally:
                held.clear()
                self._under_way[key] -= 1
                if not self._under_way[key]:
                    del self._under_way[key]


def token_user(site: Site) -> str | None:
    """Return whom the token of the present request names, or who needs none here."""
    token = get_access_token()
    claims = None if token is None else {"client_id": token.client_id, **token.claims}
    with contextlib.suppress(IdentityError):
        return resolve(site.settings, transport="http", claims=claims, host=site.settings.host).name
    return None
