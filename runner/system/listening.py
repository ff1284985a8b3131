"""Listening on an address, and the web server that does: once for every HTTP server that the runner opens."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from runner.errors import UsageError
from runner.system.accepting import Acceptor

__all__ = ["BACKLOG", "QuietServer", "listen_on", "serving_beside"]

BACKLOG = 2048


class QuietServer(uvicorn.Server):
    """Uvicorn, with the signals left to us: it would raise them again after its own shutdown.

    Args:
        config: How to serve.
        make_room: Gives up descriptors that nobody needs now; False if there are none.
        tls: Returns what a new connection speaks TLS with; None where connections do not.
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
        """Start, and take connections from sockets that listen."""
        await super().startup([])
        for listener in sockets or ():
            acceptor = Acceptor(
                listener=listener, protocol=self._connection, make_room=self._make_room, tls=self._tls
            )
            self._acceptors.append(acceptor)
            acceptor.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, and end those that there are."""
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
    """Return a socket that listens.

    Args:
        host: The address; one of version 6 may stand in brackets.
        port: The port; 0 takes a free one.
        setting: What the operator changes to have another port.

    Raises:
        UsageError: The address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, or asyncio would not switch off Nagle's algorithm: 40 ms on every answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another {setting}"
        ) from error
    return listener


@asynccontextmanager
async def serving_beside(app: ASGIApp, listeners: list[socket.socket], **options: Any) -> AsyncIterator[None]:
    """Serve a small application beside the main one, until the block ends.

    Args:
        app: The application.
        listeners: Sockets that listen.
        options: Further options of uvicorn.
    """
    options |= {"ws": "none", "log_config": None, "access_log": False, "lifespan": "off"}
    # A client that is slow to receive an answer has a second.
    server = QuietServer(uvicorn.Config(app, timeout_graceful_shutdown=1, **options))
    task = asyncio.create_task(server.serve(sockets=listeners))
    try:
        yield
    finally:
        server.should_exit = True
        await asyncio.wait({task})
