"""Connections over HTTP: how many there may be, in all and from one address, and how long they may wait.

A connection costs a descriptor from before anybody knows whose it is. So there are bounds. Where one is
reached, a connection on which nothing is asked makes room; only where all are in use is the new one refused,
with an answer that says when to come back. Who begins a request and does not go on with it is refused as
well.

Source: RFC 9110, 15.5.9 (408) and 15.6.4 (503); RFC 6585, section 4 (429).
"""

import asyncio
import http
import json
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from runner.http.joined_writes import JoinedWrites
from runner.users.gateway_tls import names_of
from sandbox.host import descriptors

__all__ = ["PEER_NAMES", "HttpConnection", "HttpConnections", "protocol_of"]

PEER_NAMES = "toolcell.peer_names"
"""In the scope of a request that came over TLS: the names of the client's certificate, see `names_of`."""

_HEADERS_S = 20.0
_PACE_S = 30.0
_PACE_BYTES = 1024
_STALLED_S = 300.0
_RETRY_S = 5
# How long who is refused has time to read why, and how many have that at once.
_LINGER_S = 2.0
_MOST_LINGERING = 64
_SHARE_OF_DESCRIPTORS = 2
# What one address leaves to others.
_EIGHTHS_OF_ONE = 7


@dataclass(slots=True, kw_only=True, eq=False)
class HttpConnections:
    """The connections of one server.

    Attributes:
        most: How many there may be.
        most_of_one: How many there may be from one address.
        headers_s: How long the head of a request may take, in seconds.
        pace_s: In how many seconds a KiB of a body has to come.
        stalled_s: How long a client may take nothing of an answer, in seconds.
    """

    most: int
    most_of_one: int
    headers_s: float = _HEADERS_S
    pace_s: float = _PACE_S
    stalled_s: float = _STALLED_S
    _of: dict[str, dict["HttpConnection", None]] = field(init=False, default_factory=dict)
    _count: int = field(init=False, default=0)
    _lingering: int = field(init=False, default=0)

    @classmethod
    def of(cls, most: int | None, most_of_one: int | None) -> "HttpConnections":
        """Return what settings ask for; by default half of the descriptors, 7/8 of them for one address."""
        most = most or max(16, descriptors.limit() // _SHARE_OF_DESCRIPTORS)
        return cls(most=most, most_of_one=most_of_one or max(1, most * _EIGHTHS_OF_ONE // 8))

    def come(self, connection: "HttpConnection", address: str) -> tuple[int, str] | None:
        """Take in a connection; return the status and the sentence with which it is refused, if it is."""
        mine = self._of.setdefault(address, {})
        refusal = None
        if len(mine) >= self.most_of_one and not self._end_idle(mine):
            refusal = 429, f"{self.most_of_one} connections from your address are open; close one first"
        elif self._count >= self.most and not self._end_idle_of_any():
            refusal = (
                503,
                f"this server has {self.most} connections open, and all are in use; come back later",
            )
        if refusal is None:
            mine[connection] = None
            self._count += 1
        elif not mine:
            del self._of[address]
        return refusal

    def go(self, connection: "HttpConnection", address: str) -> None:
        """Take note that a connection has ended, or is about to."""
        mine = self._of.get(address, {})
        if connection in mine:
            del mine[connection]
            self._count -= 1
        if not mine:
            self._of.pop(address, None)

    def may_linger(self) -> bool:
        """Say whether one more who is refused may have time to read why; `lingered` gives it back."""
        if self._lingering >= _MOST_LINGERING:
            return False
        self._lingering += 1
        return True

    def lingered(self) -> None:
        """Take note that one has had its time."""
        self._lingering -= 1

    def _end_idle_of_any(self) -> bool:
        # Of whom there are most: who holds a thousand gives way before who holds one.
        return any(self._end_idle(mine) for mine in sorted(self._of.values(), key=len, reverse=True))

    def _end_idle(self, mine: dict["HttpConnection", None]) -> bool:
        idle = next((connection for connection in mine if connection.is_idle), None)
        if idle is None:
            return False
        idle.end()
        return True


class HttpConnection(HttpToolsProtocol):
    """One connection.

    Args:
        connections: All of them.
        more: What uvicorn tells of itself.
    """

    def __init__(self, *, connections: HttpConnections, **more: Any) -> None:
        super().__init__(**more)
        self._all = connections
        self._address = ""
        self._timer: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._is_refused = False
        self._peer_names: frozenset[str] | None = None
        self._lingers = False
        self._came = 0
        self._body_is_due = False

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way, or not all of its head has come."""
        # Typed as if there always were one.
        return getattr(self.cycle, "response_complete", True)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, if there is room."""
        super().connection_made(cast("asyncio.Transport", JoinedWrites(transport, self.loop)))
        self._address = self.client[0] if self.client else ""
        if transport.get_extra_info("sslcontext") is not None:
            self._peer_names = names_of(transport.get_extra_info("peercert"), now=time.time())
        refusal = self._all.come(self, self._address)
        if refusal is None:
            self._set_timer(self._all.headers_s, self._too_slow)
        else:
            self._refuse(*refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection no more: its client has gone."""
        self._all.go(self, self._address)
        self._unset_timer()
        if self._stall is not None:
            self._stall.cancel()
        if self._lingers:
            self._lingers = False
            self._all.lingered()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came, unless it was refused."""
        if self._is_refused:
            return
        self._came += len(data)
        super().data_received(data)
        # A clock for what is still to come; most requests come whole.
        if self._timer is not None or self.transport.is_closing():
            return
        if self._body_is_due:
            self._set_timer(self._all.pace_s, self._check_pace)
        elif self.is_idle:
            # Once for each request: who sends a byte now and then is no faster for it.
            self._set_timer(self._all.headers_s, self._too_slow)

    def on_message_begin(self) -> None:
        """Begin a request, of whoever the connection is."""
        super().on_message_begin()
        if self._peer_names is not None:
            cast("dict[str, object]", self.scope)[PEER_NAMES] = self._peer_names

    def on_headers_complete(self) -> None:
        """Watch over the body from now on."""
        self._came = 0
        self._body_is_due = True
        self._unset_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The head and body of a request have come whole."""
        self._body_is_due = False
        self._unset_timer()
        super().on_message_complete()

    def pause_writing(self) -> None:
        """The client takes no bytes at the moment; it is cut off if that lasts for `stalled_s`."""
        super().pause_writing()
        self._stall = self.loop.call_later(self._all.stalled_s, self.transport.abort)

    def resume_writing(self) -> None:
        """The client takes bytes again: it is not cut off for having stalled."""
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def end(self) -> None:
        """End a connection on which nothing is asked."""
        self._all.go(self, self._address)
        self._unset_timer()
        self.transport.close()

    def _set_timer(self, delay_s: float, act: Any) -> None:
        self._unset_timer()
        self._timer = self.loop.call_later(delay_s, act)

    def _unset_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        self._refuse(408, f"the request did not come within {self._all.headers_s:g} seconds")

    def _check_pace(self) -> None:
        # While we do not read, it cannot send.
        if self._came >= _PACE_BYTES or self.flow.read_paused:
            self._came = 0
            self._set_timer(self._all.pace_s, self._check_pace)
        elif self.cycle.response_started:
            self.transport.abort()
        else:
            self._timer = None
            self._refuse(
                408, f"less than {_PACE_BYTES} bytes of the body came in {self._all.pace_s:g} seconds"
            )

    def _refuse(self, status: int, sentence: str) -> None:
        """Say why, and close; who is told of it while still sending gets a moment to read it."""
        self._is_refused = True
        self._all.go(self, self._address)
        if self.cycle is not None:
            # Whoever waits for the rest of it hears that nobody is there any more.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if not self._all.may_linger():
            self.transport.abort()
            return
        self._lingers = True
        body = json.dumps({"error": sentence}).encode()
        later = b"" if status == http.HTTPStatus.REQUEST_TIMEOUT else b"Retry-After: %d\r\n" % _RETRY_S
        phrase = http.HTTPStatus(status).phrase.encode()
        head = b"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\n%s" % (status, phrase, later)
        self.transport.write(b"%sContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (head, len(body), body))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.abort)


def protocol_of(most: int | None = None, most_of_one: int | None = None) -> type[asyncio.Protocol]:
    """Return what uvicorn speaks on connections that share these bounds; see `HttpConnections.of`."""
    # It is only ever called.
    return cast(
        "type[asyncio.Protocol]", partial(HttpConnection, connections=HttpConnections.of(most, most_of_one))
    )
