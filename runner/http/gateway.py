"""Callers named by a gateway's header, accepted from the gateway only.

The gateway has authenticated its user and names the user in a header. Anybody can send a header, so it is
accepted only on a connection from a configured address, or with a client certificate of a configured name,
or both if both are set. From others it is refused and logged. Only the connected peer counts, never
`X-Forwarded-For`.

An accepted request continues with a pass in place of a token, so that the same checks and limits apply to it
as to others. The header is dropped.

Source: RFC 7239, section 8.1; RFC 9700, 4.13; `docs/serving.md`.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import cast

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from runner.formats.terminal_text import one_line
from runner.http.connection import HttpConnection
from runner.http.responses import refused
from runner.http.wrong_keys import note_wrong
from runner.settings.parts import ServerSettings
from runner.users.gateway_tls import names_of, wanted_names
from runner.users.identity import IdentityError, User, user_named

__all__ = ["Gateway", "Peers", "TlsConnection"]

log = logging.getLogger(__name__)

_PEER = "toolcell.peer"
_PEER_NAMES = "toolcell.peer_names"
_MOST_LOGGED_CHARS = 400


class TlsConnection(HttpConnection):
    """A connection over TLS, whose requests carry the names in the client's certificate."""

    _names: frozenset[str] = frozenset()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Read the client's certificate."""
        super().connection_made(transport)
        self._names = names_of(transport.get_extra_info("peercert"), now=time.time())

    def on_message_begin(self) -> None:
        """Add the names to the scope of a request."""
        super().on_message_begin()
        cast("dict[str, object]", self.scope)[_PEER_NAMES] = self._names


class Peers:
    """Middleware that records the real peer address, before forwarded addresses are applied.

    Args:
        app: The application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self._app({**scope, _PEER: scope.get("client")}, receive, send)


class Gateway:
    """Middleware, before token verification, that accepts users named by a gateway.

    Args:
        app: The application.
        settings: The effective settings.
        give: Returns a pass for a user, in the form of a bearer token.
    """

    def __init__(self, app: ASGIApp, *, settings: ServerSettings, give: Callable[[User], str]) -> None:
        self._app = app
        self._settings = settings
        self._shown = settings.auth.gateway_header
        self._header = self._shown.lower().encode()
        self._networks = [ip_network(each) for each in settings.auth.gateway_addresses]
        self._names = wanted_names(settings.auth.gateway_names)
        checks = {"auth.gateway_addresses": self._networks, "auth.gateway_names": self._names}
        self._required_settings = ", ".join(setting for setting, values in checks.items() if values)
        self._give = give

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        named = [value for name, value in scope.get("headers", ()) if name == self._header]
        if scope["type"] != "http" or not named:
            await self._app(scope, receive, send)
            return
        peer = _address(scope.get(_PEER))
        names: frozenset[str] = scope.get(_PEER_NAMES, frozenset())
        if not self._is_gateway(peer, names):
            certificate = ", ".join(sorted(names)) or None
            log.warning(
                "gateway header refused",
                extra={
                    "address": str(peer),
                    "header": self._shown,
                    "certificate": certificate and one_line(certificate[:_MOST_LOGGED_CHARS]),
                },
            )
            note_wrong(Request(scope), "header")
            sentence = (
                f"{self._shown} is taken from this server's gateway only; connect through it "
                f"(operator: {self._required_settings})"
            )
            await refused(403, sentence)(scope, receive, send)
            return
        claimed = _claimed(named)
        if claimed is None:
            sentence = f"{self._shown} must name one user, once, as UTF-8 text; see to the gateway"
            await refused(400, sentence)(scope, receive, send)
            return
        try:
            user = user_named(self._settings, claimed)
        except IdentityError as error:
            await refused(403, str(error))(scope, receive, send)
            return
        remaining = [
            (name, value) for name, value in scope["headers"] if name not in (self._header, b"authorization")
        ]
        passed = (b"authorization", f"Bearer {self._give(user)}".encode())
        await self._app({**scope, "headers": [*remaining, passed]}, receive, send)

    def _is_gateway(self, peer: IPv4Address | IPv6Address | None, names: frozenset[str]) -> bool:
        if self._names and self._names.isdisjoint(names):
            return False
        if self._networks and (peer is None or not any(peer in network for network in self._networks)):
            return False
        return bool(self._names or self._networks)


def _address(client: object) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(client[0]) if isinstance(client, tuple | list) else None
    except (ValueError, IndexError):
        return None
    # An IPv6 socket reports IPv4 peers as mapped addresses.
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def _claimed(named: list[bytes]) -> str | None:
    if len(named) != 1:
        return None
    try:
        return named[0].decode().strip(" \t") or None
    except UnicodeDecodeError:
        return None
