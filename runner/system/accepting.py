"""Accepting connections from a listening socket, even when descriptors run out.

asyncio's own loop retries for each place in the backlog, thousands of times a second, and logs each failure.
Here new connections wait in the kernel meanwhile, and the log has an occasional line with a count. Failed TLS
handshakes are logged in the same way.

Source: accept(2), "ERRORS"; asyncio.selector_events, `_accept_connection`.
"""

import asyncio
import errno
import logging
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from runner.system.now_and_then import NowAndThen
from sandbox.host import descriptors

__all__ = ["Acceptor"]

log = logging.getLogger(__name__)

_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# Most connections accepted in one turn of the loop.
_AT_ONCE = 64
_FIRST_REST_S = 0.05
_LONGEST_REST_S = 1.0
# Descriptors reserved for files of calls in flight: 1/_KEPT_FREE of the limit, at most _MOST_KEPT.
_KEPT_FREE = 16
_MOST_KEPT = 128
# Time limits for the TLS handshake of a client, and for its shutdown.
_HANDSHAKE_S = 10.0
_GOODBYE_S = 2.0
_TOO_MANY = "new connections have to wait: raise the limit of open files (ulimit -Hn)"
_NOT_PROVED = "a TLS handshake failed: connect with TLS and a client certificate that counts here"


@dataclass(slots=True, eq=False)
class _Warning:
    """A rate-limited warning, with a count of its omitted repetitions."""

    message: str
    _due: NowAndThen = field(init=False, default_factory=NowAndThen)

    def tell(self, **more: object) -> None:
        times = self._due.due(now=time.monotonic())
        if times:
            log.warning(self.message, extra={"times": times, **more})


@dataclass(slots=True, kw_only=True, eq=False)
class Acceptor:
    """Acceptor of the connections of one listening socket, from `start` to `close`.

    Attributes:
        listener: The socket, owned by the caller.
        protocol: Creates the protocol of a connection.
        make_room: Gives up unneeded descriptors; returns False if there are none.
        tls: Returns the TLS context of a new connection; None without TLS.
        handshake_s: Time limit of a TLS handshake, in seconds.
    """

    listener: socket.socket
    protocol: Callable[[], asyncio.BaseProtocol]
    make_room: Callable[[], bool] = lambda: False
    tls: Callable[[], ssl.SSLContext] | None = None
    handshake_s: float = _HANDSHAKE_S
    _resting: asyncio.TimerHandle | None = field(init=False, default=None)
    _rest_s: float = field(init=False, default=_FIRST_REST_S)
    _waiting: "_Warning" = field(init=False, default_factory=lambda: _Warning(_TOO_MANY))
    _unproved: "_Warning" = field(init=False, default_factory=lambda: _Warning(_NOT_PROVED))
    _tasks: "set[asyncio.Task[None]]" = field(init=False, default_factory=set)

    def start(self) -> None:
        """Start accepting connections."""
        self.listener.setblocking(False)  # noqa: FBT003 - the standard library's signature
        self._listen()

    def close(self) -> None:
        """Stop accepting. Established connections stay open; TLS handshakes in progress end."""
        if self._resting is not None:
            self._resting.cancel()
        asyncio.get_running_loop().remove_reader(self.listener.fileno())
        for task in self._tasks:
            task.cancel()

    def _listen(self) -> None:
        self._resting = None
        asyncio.get_running_loop().add_reader(self.listener.fileno(), self._readable)

    def _readable(self) -> None:
        for _ in range(_AT_ONCE):
            if not self._has_room():
                self._rest(OSError(errno.EMFILE, "too few descriptors are left"))
                return
            try:
                connection, address = self.listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _SHORT:
                    raise
                self._rest(error)
                return
            self._rest_s = _FIRST_REST_S
            self._begin(connection, str(address[0]))

    def _has_room(self) -> bool:
        spare = min(descriptors.limit() // _KEPT_FREE, _MOST_KEPT)
        return descriptors.left() > spare or self.make_room()

    def _begin(self, connection: socket.socket, address: str) -> None:
        connection.setblocking(False)  # noqa: FBT003 - the standard library's signature
        task = asyncio.create_task(self._connect(connection, address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, connection: socket.socket, address: str) -> None:
        context = None if self.tls is None else self.tls()
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self.protocol,
                connection,
                ssl=context,
                ssl_handshake_timeout=self.handshake_s if context else None,
                ssl_shutdown_timeout=_GOODBYE_S if context else None,
            )
        except (ssl.SSLError, ConnectionAbortedError) as error:
            reason = getattr(error, "verify_message", None) or getattr(error, "reason", None) or str(error)
            self._unproved.tell(address=address, problem=reason)
        except OSError as error:
            # Port probes close their connection at once.
            log.debug("connection ended early", extra={"problem": str(error)})
            connection.close()

    def _rest(self, error: OSError) -> None:
        """Pause accepting, longer each time."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.listener.fileno())
        self._resting = loop.call_later(self._rest_s, self._listen)
        self._rest_s = min(2 * self._rest_s, _LONGEST_REST_S)
        self._waiting.tell(limit=descriptors.limit(), problem=error.strerror)
