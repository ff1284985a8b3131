"""Listening sockets and the web server, for every HTTP server that the runner starts.

Source: sd_listen_fds(3).
"""

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from runner.errors import UsageError
from runner.system.accepting import Acceptor

__all__ = ["QuietServer", "inherited_listener", "listen_on", "listen_on_loopback", "serving_beside"]

_BACKLOG = 2048
_FIRST_DESCRIPTOR = 3
_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID")


class QuietServer(uvicorn.Server):
    """Uvicorn without its signal handling, which would raise signals again after its shutdown.

    Args:
        config: Configuration of Uvicorn.
        make_room: Gives up unneeded descriptors; returns False if there are none.
        tls: Returns the TLS context of a new connection; None without TLS.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        make_room: Callable[[], bool] = lambda: False,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        super().__init__(config)
        self._make_room = make_room
        self._tls = tls
        self._acceptors: list[Acceptor] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and accept connections from listening sockets."""
        await super().startup([])
        for listener in sockets or ():
            acceptor = Acceptor(
                listener=listener, protocol=self._connection, make_room=self._make_room, tls=self._tls
            )
            self._acceptors.append(acceptor)
            acceptor.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, and end the existing ones."""
        for acceptor in self._acceptors:
            acceptor.close()
        await super().shutdown(sockets)

    def _connection(self) -> asyncio.Protocol:
        kind: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return kind(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the command, which handles them itself."""
        yield


def listen_on(host: str, port: int, *, setting: str) -> socket.socket:
    """Return a listening socket.

    Args:
        host: The address; an IPv6 address may be in brackets.
        port: The port; 0 takes a free one.
        setting: Name of the setting for another port.

    Raises:
        UsageError: The address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Explicitly TCP: otherwise asyncio would not disable Nagle's algorithm, which delays answers by 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another {setting}"
        ) from error
    return listener


def inherited_listener(
    host: str, port: int, *, environ: MutableMapping[str, str] = os.environ
) -> socket.socket | None:
    """Return the socket that this process was started with, as by a socket unit of systemd, if there is one.

    It stays open while the server restarts, so clients that connect meanwhile wait instead of being refused.

    Args:
        host: The address in the settings. Access control depends on it, so the socket must have it.
        port: The port in the settings.
        environ: The variables of this process; those of the socket are removed.

    Raises:
        UsageError: The inherited descriptors are not exactly one socket for that address and port.
    """
    if environ.get("LISTEN_PID") != str(os.getpid()) or "LISTEN_FDS" not in environ:
        return None
    count = environ["LISTEN_FDS"]
    for variable in _VARIABLES:
        environ.pop(variable, None)
    if count != "1":
        raise UsageError(
            f"LISTEN_FDS={count}: a server takes one socket; give the socket unit one ListenStream="
        )
    try:
        listener = socket.socket(fileno=_FIRST_DESCRIPTOR)
    except OSError as error:
        message = f"LISTEN_FDS=1, but descriptor {_FIRST_DESCRIPTOR} is not a socket: {error.strerror}"
        raise UsageError(message) from error
    try:
        listener.set_inheritable(False)
        _check(listener, host, port)
        # It may be listening already; the parent may leave that to us.
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        message = f"the socket that was handed over (LISTEN_FDS) cannot listen: {error.strerror}"
        raise UsageError(message) from error
    except UsageError:
        listener.close()
        raise
    return listener


def _check(listener: socket.socket, host: str, port: int) -> None:
    if listener.family not in {socket.AF_INET, socket.AF_INET6} or listener.type != socket.SOCK_STREAM:
        raise UsageError(
            "the socket that was handed over (LISTEN_FDS) is not one of TCP; "
            f"give the socket unit ListenStream={host}:{port}"
        )
    address, own_port = listener.getsockname()[:2]
    if own_port != port or address not in _addresses(host, listener.family):
        raise UsageError(
            f"the socket that was handed over (LISTEN_FDS) is at {address} port {own_port}, and the settings "
            f"say {host} port {port}; have --host and --port say the same as the socket"
        )


def _addresses(host: str, family: int) -> set[str]:
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, family=family, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {str(address[0]) for *_, address in found}


def listen_on_loopback(port: int, *, setting: str, alone: bool = False) -> list[socket.socket]:
    """Return listeners on a port of both loopback addresses, since `localhost` may mean either.

    A machine may lack one of them.

    Args:
        port: The port; 0 takes a free one.
        setting: Name of the setting for another port.
        alone: Whether to refuse a port on which another process has the IPv6 address: it could predict
            the port, and pages would trust it.

    Raises:
        UsageError: The port cannot be listened on.
    """
    listeners: list[socket.socket] = []
    refusals: list[UsageError] = []
    for host in ("127.0.0.1", "::1"):
        try:
            listeners.append(listen_on(host, port, setting=setting))
            port = listeners[0].getsockname()[1]
        except UsageError as refused:
            cause = refused.__cause__
            is_taken = isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE
            if is_taken and (alone or not listeners):
                for listener in listeners:
                    listener.close()
                raise
            refusals.append(refused)
    if not listeners:
        raise refusals[0]
    return listeners


@asynccontextmanager
async def serving_beside(app: ASGIApp, listeners: list[socket.socket], **options: Any) -> AsyncIterator[None]:
    """Serve a small application beside the main one, until the block ends.

    Args:
        app: The application.
        listeners: Listening sockets.
        options: Further options of uvicorn.
    """
    options |= {"ws": "none", "log_config": None, "access_log": False, "lifespan": "off"}
    # A slow client has one second to receive an answer.
    server = QuietServer(uvicorn.Config(app, timeout_graceful_shutdown=1, **options))
    task = asyncio.create_task(server.serve(sockets=listeners))
    try:
        yield
    finally:
        server.should_exit = True
        await asyncio.wait({task})
