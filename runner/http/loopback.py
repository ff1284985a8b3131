"""Private listener for tools: a loopback address of this host that serves downloads and nothing else.

A tool that gets a link must be able to fetch it, and reach nothing else: neither `/mcp` nor the pages. So
the link leads to a separate listener with one route, on a port chosen by the kernel. The worker's policy
allows only that address; the token in the link identifies the file.

Connections use descriptors of the host, and a tool may open any number. So connections are limited per
caller, identified by its loopback source address, and in total.

Source: requirements S0-49 to S0-53 and S0-58; architecture, decision "Network".
"""

import asyncio
import logging
import resource
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.routing import BaseRoute
from uvicorn.protocols.http.h11_impl import H11Protocol

from runner.system.listening import QuietServer

__all__ = ["LOOPBACK", "Loopback"]

LOOPBACK = "127.0.0.1"

_STOP_S = 2.0
# Common clients open at most a hundred at once.
_MOST_OF_ONE = 100
# Each connection uses two descriptors, its own and a file's; half of all descriptors remain for calls.
_SHARE_OF_DESCRIPTORS = 4


class _Connection(H11Protocol):
    """A connection, aborted at once if there are too many."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        assert self.client is not None  # noqa: S101 - TCP has a peer
        source = self.client[0]
        of_one = sum(1 for other in self.connections if _source(other) == source)
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if of_one > _MOST_OF_ONE or len(self.connections) > descriptors // _SHARE_OF_DESCRIPTORS:
            transport.abort()


@dataclass(slots=True, kw_only=True)
class Loopback:
    """A running listener. Make one with `open`.

    Attributes:
        port: Its port on the loopback address.
    """

    port: int
    _server: QuietServer
    _task: "asyncio.Task[None]" = field(repr=False)

    @classmethod
    async def open(cls, routes: Sequence[BaseRoute]) -> Self:
        """Serve `routes` on a free port of the loopback address.

        Raises:
            OSError: There is no free port.
        """
        listener = socket.create_server((LOOPBACK, 0), backlog=1024)
        port: int = listener.getsockname()[1]
        # A page in a browser could rebind a name of its own to this address; real clients send no name.
        hosts = Middleware(TrustedHostMiddleware, allowed_hosts=[LOOPBACK])
        app = Starlette(routes=list(routes), middleware=[hosts])
        config = uvicorn.Config(
            app,
            http=_Connection,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            log_level=logging.WARNING,
            timeout_graceful_shutdown=int(_STOP_S),
        )
        server = QuietServer(config)
        return cls(port=port, _server=server, _task=asyncio.create_task(server.serve(sockets=[listener])))

    @property
    def address(self) -> tuple[str, int]:
        """Return the address as policies name it."""
        return LOOPBACK, self.port

    @property
    def url(self) -> str:
        """Return the base URL of links."""
        return f"http://{LOOPBACK}:{self.port}"

    async def close(self) -> None:
        """Drain requests in flight for a few seconds, and stop."""
        self._server.should_exit = True
        await asyncio.wait({self._task}, timeout=2 * _STOP_S)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def _source(connection: object) -> str | None:
    client: tuple[str, int] | None = getattr(connection, "client", None)
    return None if client is None else client[0]
