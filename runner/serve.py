"""`runner serve`: tool files over stdio or streamable HTTP, until told to stop."""

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Literal

import uvicorn
from fastmcp import FastMCP

from runner.artifacts.process import ArtifactFile
from runner.cell import Cell
from runner.errors import UsageError
from runner.host import make_host
from runner.http import downloads, health
from runner.http.body import limit_bodies
from runner.http.origins import protection
from runner.identity import IdentityError, User, check_startable, resolve
from runner.settings import Settings
from runner.tokens import Tokens

__all__ = ["serve"]

log = logging.getLogger(__name__)

_DOWNLOAD_S = 3600


async def serve(settings: Settings, targets: Sequence[str]) -> int:
    """Serve the tool files until the client leaves or a signal comes; return the exit status.

    Raises:
        UsageError: The address cannot be listened on, or nobody says who may call.
        LoadError: A tool file is at fault.
        ConfinementError: A layer could not be put in place.
    """
    transport = _transport(settings)
    check_startable(settings, transport)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    listener = _listen(settings) if transport == "http" else None
    async with Cell.open(settings, targets, user=_first_user(settings, transport)) as cell:
        if listener is None:
            await _until(stopped, _serve_stdio(make_host(cell, transport="stdio", download_url=None)))
        else:
            await _serve_http(cell, settings, listener, stopped)
    if transport == "stdio" and stopped.is_set():
        # The thread that reads standard input cannot be interrupted; all else is cleaned up.
        logging.shutdown()
        os._exit(0)
    return 0


def _transport(settings: Settings) -> Literal["stdio", "http"]:
    if settings.transport != "auto":
        return settings.transport
    return "http" if sys.stdin is not None and sys.stdin.isatty() else "stdio"


def _first_user(settings: Settings, transport: Literal["stdio", "http"]) -> User | None:
    """Return the user whose workers to make ready before the first call, if one can be named."""
    if settings.user is not None:
        return User(settings.user)
    try:
        return resolve(settings, transport=transport, claims=None, host=settings.host)
    except IdentityError:
        return None


async def _until(stopped: asyncio.Event, server: "asyncio.Task[None]") -> None:
    waiter = asyncio.create_task(stopped.wait())
    await asyncio.wait({waiter, server}, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    if server.done():
        server.result()


def _serve_stdio(app: FastMCP) -> "asyncio.Task[None]":
    return asyncio.create_task(app.run_stdio_async(show_banner=False))


async def _serve_http(
    cell: Cell, settings: Settings, listener: socket.socket, stopped: asyncio.Event
) -> None:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    tokens = Tokens(settings.state_dir / "tokens.json")

    def download_url(user: User, file: ArtifactFile) -> str:
        token = tokens.sign(
            user=user.name, key=file.id, purpose=downloads.PURPOSE, now=time.time(), ttl_s=_DOWNLOAD_S
        )
        return f"http://{shown}:{port}/api/files/download/{file.id}?token={token}"

    app = make_host(cell, transport="http", download_url=download_url)
    web = app.http_app(path="/mcp", **protection(settings))
    web.router.routes.extend(health.routes(tier="process", version=version("toolcell"), ready=lambda: True))
    web.router.routes.extend(downloads.routes(tokens, cell.store, clock=time.time))
    limit_bodies(web, settings.max_request_bytes)
    config = uvicorn.Config(
        web, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=5
    )
    server = _Server(config)
    print(f"serving {cell.catalog.name} at http://{shown}:{port}/mcp", file=sys.stderr, flush=True)  # noqa: T201
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await _until(stopped, serving)
    server.should_exit = True
    await serving


class _Server(uvicorn.Server):
    """Uvicorn, with the signals left to us: it would raise them again after its own shutdown."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # Named as TCP, or asyncio would not switch off Nagle's algorithm: 40 ms on every answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host.strip("[]"), settings.port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror}; choose another --port"
        ) from error
    return listener
