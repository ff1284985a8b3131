"""Limits on one user's requests in flight (open streams, uploads, waiting calls) and on their bodies.

They apply after token verification, since the user is unknown before; until then, the proxy in front limits
connections. Health checks always pass.

A body is counted as it is received, until its request ends: most routes need all of it in memory, and so does
the call that it starts. Bodies that a route streams to disk (`streamed`) are not counted. A body that stalls
is refused, and its bytes are released.

An announced length reserves nothing. One user never holds more than is left for all others: as the total
grows, each user's share shrinks, and small requests still pass.

Source: RFC 9110, 15.5.9 (408) and 15.5.14 (413); RFC 6585, section 4 (429).
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from fastmcp.server.dependencies import get_access_token
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.http.context import Site
from runner.http.identify import browser_session
from runner.http.readiness import PATHS
from runner.http.responses import Refusal, refused
from runner.http.wrong_keys import of_address, spare_tokens
from runner.users.identity import IdentityError, user_of
from runner.users.resource import LOGINS
from sandbox.host.server_memory import find_server_memory

__all__ = ["MOST_REQUESTS", "HeldBodies", "RequestsPerUser", "count_for", "streamed", "token_user"]

MOST_REQUESTS = 100
"""Requests of one user in flight: a browser has ten at most, and each holds a connection and its body."""
_IN_SCOPE = "toolcell.held_body"
_COUNT = "toolcell.count_for"
_TOO_MANY = 429, f"{MOST_REQUESTS} requests of yours are under way; wait for one, or end one"
_IDLE_S = 60.0
_NOBODYS_BYTES = 1024 * 1024
_NOBODYS_BODY_BYTES = 16 * 1024
# Their requests need no login, so those of users have the bounds of clients without one, too.
_LOGIN_PATHS = frozenset({"/authorize", "/consent", "/register", "/revoke", "/token"})
_OF_ONE, _OF_ALL = 2, 8
_SHARE_OF_MEMORY = 8


class RequestsPerUser:
    """Middleware that refuses a request of a user with too many in flight.

    Args:
        app: The application.
        site: The server.
    """

    def __init__(self, app: ASGIApp, *, site: Site) -> None:
        self._app = app
        self._site = site
        self._under_way: Counter[str] = Counter()
        self._strangers = _LOGIN_PATHS if site.settings.auth.kind in LOGINS else frozenset()
        self._bodies = HeldBodies(
            max_payload_bytes=site.settings.max_payload_bytes,
            memory_bytes=find_server_memory().limit_bytes,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or scope["path"] in PATHS:
            await self._app(scope, receive, send)
            return
        if getattr(scope.get("user"), "is_authenticated", False):
            # From here on, a 401 concerns something else than the token, such as a missing session.
            spare_tokens(scope)
        user = token_user(self._site)
        if user is None and b"cookie" in dict(scope["headers"]):
            known = browser_session(
                self._site.settings, self._site.tokens, Request(scope), now=self._site.clock()
            )
            user = None if known is None else known.name
        if user is not None and self._under_way[user] >= MOST_REQUESTS:
            await refused(*_TOO_MANY)(scope, receive, send)
            return
        sender = None if scope["path"] in self._strangers else user
        with self._bodies.one(sender, scope, receive, send) as body:
            # Frameworks keep these two functions in reference cycles and in tracebacks of a wait for the
            # disconnect. `held` is cleared so that they do not keep a finished body.
            held = [body]

            async def receive_held() -> Message:
                return await (held[0].receive if held and not held[0].is_whole else receive)()

            async def send_held(message: Message) -> None:
                if held:
                    await held[0].send(message)

            # Requests without a user log in, or are refused at once further on.
            key = [user or ""]
            self._under_way[key[0]] += 1
            scope[_COUNT] = partial(self._count, key)
            try:
                await self._app(scope, receive_held, send_held)
            finally:
                held.clear()
                del scope[_COUNT]
                self._discount(key)

    def _count(self, key: list[str], user: str) -> None:
        if self._under_way[user] >= MOST_REQUESTS and user not in key:
            raise Refusal(*_TOO_MANY)
        self._discount(key)
        key[0] = user
        self._under_way[user] += 1

    def _discount(self, key: list[str]) -> None:
        self._under_way[key[0]] -= 1
        if not self._under_way[key[0]]:
            del self._under_way[key[0]]


def count_for(request: Request, user: str) -> None:
    """Count a request for the user whose permission it uses, from now until its end.

    Raises:
        Refusal: 429: the user has too many in flight.
    """
    count = request.scope.get(_COUNT)
    if count is not None:
        count(user)


def token_user(site: Site) -> str | None:
    """Return the user of the current request's token, or the user who needs no token here."""
    with contextlib.suppress(IdentityError):
        return user_of(site.settings, get_access_token()).name
    return None


@dataclass(slots=True, kw_only=True, eq=False)
class HeldBodies:
    """The request bodies that one server holds in memory.

    Attributes:
        max_payload_bytes: The setting: longest body of a request; a user may hold two such bodies.
        memory_bytes: The memory of the server: all bodies may take an eighth of it.
        idle_s: The time without a byte after which a body is refused, in seconds. A body from a client
            without a user must be complete by then.
        most_of_one: The most bytes of one user; clients without a user count together as one.
        most: The most bytes of all users.
    """

    max_payload_bytes: int
    memory_bytes: int
    idle_s: float = _IDLE_S
    most_of_one: int = field(init=False)
    most: int = field(init=False)
    _users: Counter[str] = field(init=False, default_factory=Counter)
    _addresses: Counter[str] = field(init=False, default_factory=Counter)
    _total: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        share = self.memory_bytes // _SHARE_OF_MEMORY
        self.most_of_one = _OF_ONE * self.max_payload_bytes
        self.most = max(self.most_of_one, min(_OF_ALL * self.max_payload_bytes, share))

    def one(self, user: str | None, scope: Scope, receive: Receive, send: Send) -> "HeldBody":
        """Return the body of one request, which is held until the block ends.

        Args:
            user: The user of the request; None: unknown, and the client's address is counted.
            scope: The request.
            receive: Returns its next message.
            send: Sends its answer.
        """
        address = of_address((scope.get("client") or ("", 0))[0]) if user is None else None
        ends_at = asyncio.get_running_loop().time() + self.idle_s
        body = HeldBody(self, (user or "", address), (scope, receive, send), ends_at)
        scope[_IN_SCOPE] = body
        return body

    def take(self, user: str, address: str | None, count: int, *, held: int) -> tuple[int, str] | None:
        """Count bytes that were received; return status and sentence of a refusal, if they do not fit.

        Args:
            user: The user; empty if unknown.
            address: The client's address, if its user is unknown.
            count: Number of the bytes.
            held: Number of earlier bytes of the body.
        """
        if address is not None and held + count > _NOBODYS_BODY_BYTES:
            return (
                413,
                f"a request without a login may bring {_NOBODYS_BODY_BYTES} bytes; log in, or send less",
            )
        if address is not None and self._addresses[address] + count > _NOBODYS_BYTES:
            return 413, (
                f"requests of your address without a login may bring {_NOBODYS_BYTES} bytes at a time; "
                "log in, or send less"
            )
        of_user, total = self._users[user] + count, self._total
        if of_user > self.most_of_one:
            whose = "of all clients without a login" if address is not None else "of yours"
            return 429, (
                f"requests {whose} that are in flight bring more than {self.most_of_one} bytes, twice "
                f"max_payload_bytes ({self.max_payload_bytes}); wait for one, then send this one again"
            )
        if of_user > self.most - total:
            return 503, (
                f"requests in flight bring {total} of {self.most} bytes that this server holds at a time "
                f"(by max_payload_bytes, {self.max_payload_bytes}, and its memory); send this one again later"
            )
        self._users[user] = of_user
        self._total += count
        if address is not None:
            self._addresses[address] += count
        return None

    def release(self, user: str, address: str | None, count: int) -> None:
        """Subtract bytes from the counts."""
        self._total -= count
        for counter, key in ((self._users, user), (self._addresses, address)):
            if key is not None:
                counter[key] -= count
                if counter[key] <= 0:
                    del counter[key]


@dataclass(slots=True, eq=False)
class HeldBody(AbstractContextManager["HeldBody"]):
    """The body of one request. Not a generator, which would cost more on every request.

    Attributes:
        is_held: Whether received bytes are held until the request ends.
        is_whole: Whether all of it was received.
    """

    _bodies: HeldBodies
    # User and address.
    _key: tuple[str, str | None]
    _request: tuple[Scope, Receive, Send]
    _ends_at: float
    is_held: bool = field(init=False, default=True)
    is_whole: bool = field(init=False, default=False)
    _held: int = field(init=False, default=0)
    _is_answered: bool = field(init=False, default=False)
    _is_refused: bool = field(init=False, default=False)

    def __exit__(self, *_: object) -> None:
        del self._request[0][_IN_SCOPE]
        self.release()

    async def receive(self) -> Message:
        """Return the next message of the request; after a refusal, a disconnect."""
        scope, receive, send = self._request
        if self.is_whole:
            return await receive()
        if self._is_refused:
            return {"type": "http.disconnect"}
        refusal, message = None, cast("Message", {})
        loop_s, address = asyncio.get_running_loop().time, self._key[1]
        try:
            async with asyncio.timeout_at(self._ends_at if address else loop_s() + self._bodies.idle_s):
                message = await receive()
        except TimeoutError:
            late = "it is not whole after" if address else "no byte of it was received for"
            refusal = 408, f"the body stalled: {late} {self._bodies.idle_s:g} seconds; send it again"
        if refusal is None:
            self.is_whole = not message.get("more_body")
            count = len(message.get("body", b"")) if self.is_held else 0
            refusal = self._bodies.take(*self._key, count, held=self._held) if count else None
            if refusal is None:
                self._held += count
                return message
        # Sent from here, whatever reads the body: the SDK and FastMCP cannot express this refusal.
        self._is_refused, self.is_whole = True, False
        self.release()
        if not self._is_answered:
            self._is_answered = True
            await refused(*refusal)(scope, receive, send)
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send a message of the answer, unless the request was refused."""
        if not self._is_refused:
            self._is_answered = True
            await self._request[2](message)

    def release(self) -> None:
        """Release all bytes that it holds."""
        count, self._held = self._held, 0
        self._bodies.release(*self._key, count)


async def streamed(request: Request) -> AsyncIterator[bytes]:
    """Yield the body of a request in chunks; a consumer holds one at a time."""
    body: HeldBody | None = request.scope.get(_IN_SCOPE)
    if body is not None:
        body.is_held = False
    async for piece in request.stream():
        yield piece
