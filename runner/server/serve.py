"""`runner serve`: tool files over stdio or streamable HTTP, until a stop signal."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import uvicorn
from fastmcp import FastMCP
from starlette.applications import Starlette

from runner.artifacts.accept import ArtifactFile
from runner.errors import UsageError
from runner.http.connection import HttpConnection
from runner.http.context import Site
from runner.http.gateway import TlsConnection
from runner.http.open_streams import OpenStreams
from runner.http.readiness import Readiness
from runner.observation.metrics import Gauges, metrics_served
from runner.playground.config import Playground
from runner.playground.playground import About, open_playground
from runner.playground.routes import playground_address
from runner.protocol.sender import Transport
from runner.protocol.stdio import Unanswered, serve_stdio
from runner.protocol.tool_calls import Answerer
from runner.server.code_mode import CODE_FILE, narrowed
from runner.server.host import DownloadUrl, Host, make_host
from runner.server.reloading import Reloads, prepare_tokens
from runner.server.web import build_app
from runner.settings.settings import Settings
from runner.system.listening import QuietServer, inherited_listener, listen_on
from runner.system.running_servers import RunningServer
from runner.system.stop_signals import StopSignals
from runner.toolset.call_services import CallServices
from runner.toolset.drain import Drain
from runner.toolset.toolset import Toolset
from runner.users.gateway_tls import GatewayTls
from runner.users.identity import User, check_startable
from runner.users.token_checks import tokens_fault
from sandbox.host import descriptors

__all__ = [
    "KEY_S",
    "serve",
    "serve_application",
    "site_of",
    "with_code",
]

log = logging.getLogger(__name__)

_THREADS = 64
# Time for pending answers and cleanup, once no call runs any more.
_GRACE_S = 5
# Time for the last message of an open stream.
_FAREWELL_S = 0.5

KEY_S = 30 * 24 * 3600.0
"""Age at which the key that signs links and cookies is replaced when a server starts, in seconds."""


S = TypeVar("S", bound=CallServices)


async def serve(
    settings: Settings,
    transport: Transport,
    opened: AbstractAsyncContextManager[Toolset],
    reread: Callable[[], Settings],
    *,
    fleet: Callable[[Toolset], AbstractAsyncContextManager[object]] | None = None,
) -> int:
    """Serve tool files until the client disconnects or a signal arrives; return the exit status.

    Args:
        settings: The effective settings.
        transport: The transport.
        opened: Context that yields the tool files.
        reread: Reads the settings again.
        fleet: Opens the executor on other machines, which becomes that of the tool files, if there is one.

    Raises:
        UsageError: The address cannot be listened on, or callers cannot be identified.
        LoadError: A tool file is faulty.
        ConfinementError: A layer could not be put in place.
    """
    both = with_code(settings, opened if fleet is None else _with_fleet(opened, fleet))
    return await serve_application(settings, transport, both, partial(make_host, transport=transport), reread)


@asynccontextmanager
async def with_code(settings: Settings, opened: AbstractAsyncContextManager[S]) -> AsyncIterator[S]:
    """Open services, and beside them the tools of code mode if the settings have it.

    Raises:
        UsageError: Calls are executed on other machines, or a table of the settings names two tools.
    """
    if settings.code_mode and settings.is_fleet:
        raise UsageError("code_mode does not work in a fleet; leave code_mode or redis_url out")
    async with opened as services:
        if not settings.code_mode:
            yield services
            return
        async with Toolset.open(narrowed(settings), [str(CODE_FILE)], beside=services) as code:
            files = services.catalog.tools if isinstance(services, Toolset) else ()
            for name in code.catalog.tools:
                # Rights for code must not apply to a tool of the file, or vice versa.
                if name in settings.tools and name in files:
                    raise UsageError(
                        f"[tools.{name}] names a tool of code mode, and a file has one of that name; "
                        "rename that, or leave out the table or code_mode"
                    )
            services.code = code
            yield services


@asynccontextmanager
async def _with_fleet(
    opened: AbstractAsyncContextManager[Toolset],
    fleet: Callable[[Toolset], AbstractAsyncContextManager[object]],
) -> AsyncIterator[Toolset]:
    """Open tool files, and the executor of their calls."""
    async with opened as toolset, fleet(toolset):
        yield toolset


async def serve_application(
    settings: Settings,
    transport: Transport,
    opened: AbstractAsyncContextManager[S],
    make: Callable[[S, DownloadUrl | None], FastMCP],
    reread: Callable[[], Settings],
) -> int:
    """Serve an application until the client disconnects or a signal arrives; return the exit status.

    Args:
        settings: The effective settings.
        transport: The transport.
        opened: Context that yields the services of the application.
        make: Makes the application; over HTTP it gets the maker of download addresses.
        reread: Reads the settings again, on a signal.

    Raises:
        UsageError: The address cannot be listened on, or callers cannot be identified.
    """
    check_startable(settings, transport)
    tls = GatewayTls.of(settings) if transport == "http" else None
    loop = asyncio.get_running_loop()
    # Several threads, so that copying a large file does not block all other users.
    loop.set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="runner"))
    signals = StopSignals.install()
    reloads = Reloads(settings=settings, reread=reread)
    loop.add_signal_handler(signal.SIGHUP, _hung_up, os.isatty(0), reloads, signals)
    listener = _listener(settings) if transport == "http" else None
    async with opened as served, _reloading(reloads, served), _metrics(settings, served) as scraped:
        if listener is None:
            app = make(served, None)
            scraped.faults = Readiness.of_services(served).faults
            unanswered = Unanswered()
            serving = serve_stdio(app, unanswered, drain_s=settings.drain_s, direct=_direct(app))
            await _until(signals.stopped, asyncio.create_task(serving))
            await _drained(served.drain, settings.drain_s, signals.again)
            # The last answers are being sent to a client that may or may not read them.
            await unanswered.none(_GRACE_S)
        else:
            await _serve_http(served, make, settings, listener, tls, signals, reloads, scraped)
    if transport == "stdio" and signals.stopped.is_set():
        # The thread that reads standard input cannot be interrupted; everything else is cleaned up.
        logging.shutdown()
        os._exit(signals.exit_status)
    return signals.exit_status


def _listener(settings: Settings) -> socket.socket:
    """Return the socket passed by the service manager, or a new one.

    Raises:
        UsageError: The address cannot be listened on.
    """
    inherited = inherited_listener(settings.host, settings.port)
    return (
        listen_on(settings.host, settings.port, setting="--host or --port")
        if inherited is None
        else inherited
    )


def _hung_up(had_terminal: bool, reloads: Reloads, signals: StopSignals) -> None:  # noqa: FBT001
    """Reload the configuration; or stop if the terminal was closed, like other programs in a terminal."""
    if had_terminal and not os.isatty(0):
        signals.receive(signal.SIGTERM)
    else:
        reloads.requested.set()


@dataclass(slots=True)
class _Scraped:
    """Gauges at one moment, for a scrape of the metrics.

    Attributes:
        served: The services.
        faults: Returns the faults that prevent calls; over HTTP, those of `/readyz`.
    """

    served: CallServices
    faults: Callable[[], Awaitable[Mapping[str, str]]]

    async def gauges(self) -> Gauges:
        self.served.observers.record_ended()
        return replace(await self.served.gauges(), faults=tuple(await self.faults()))


@asynccontextmanager
async def _metrics(settings: Settings, served: CallServices) -> AsyncIterator[_Scraped]:
    scraped = _Scraped(served, served.faults)
    metrics, hosts = served.observers.metrics, settings.allowed_hosts
    async with metrics_served(settings.metrics_address, metrics, scraped.gauges, hosts=hosts):
        yield scraped


@asynccontextmanager
async def _reloading(reloads: Reloads, served: CallServices) -> AsyncIterator[None]:
    reloads.prepare.append(served.prepare)
    if isinstance(served.code, Toolset):
        code = served.code
        reloads.prepare.append(lambda settings: code.prepare(narrowed(settings)))
    with RunningServer.open(
        reloads.settings.state_dir, what=", ".join(map(str, served.named_files))
    ) as server:
        task = asyncio.create_task(reloads.run(server))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})


async def _left(drain: Drain, stop_delay_s: float, again: asyncio.Event) -> None:
    """Fail readiness for a while, so that load balancers notice, before calls are refused."""
    if stop_delay_s:
        drain.leave()
        log.info("server stops soon", extra={"stop_delay_s": stop_delay_s})
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(again.wait(), stop_delay_s)


async def _drained(drain: Drain, drain_s: float, again: asyncio.Event) -> None:
    """Wait up to `drain_s` for the calls in flight to end; end them at once on a second signal."""
    drain.begin(drain_s)
    done, hurry = asyncio.create_task(drain.done()), asyncio.create_task(again.wait())
    await asyncio.wait({done, hurry}, return_when=asyncio.FIRST_COMPLETED)
    if not done.done():
        drain.begin(0)
        await asyncio.wait({done}, timeout=_GRACE_S)
    for task in (done, hurry):
        task.cancel()


async def _until(stopped: asyncio.Event, server: "asyncio.Task[None]") -> None:
    waiter = asyncio.create_task(stopped.wait())
    await asyncio.wait({waiter, server}, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    if server.done():
        server.result()


async def _serve_http(
    served: S,
    make: Callable[[S, DownloadUrl | None], FastMCP],
    settings: Settings,
    listener: socket.socket,
    tls: GatewayTls | None,
    signals: StopSignals,
    reloads: Reloads,
    scraped: _Scraped,
) -> None:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    own = f"{settings.scheme}://{shown}:{port}"
    served.links = replace(served.links, base=settings.public_url or own)

    def download_url(user: User, file: ArtifactFile) -> str:
        return served.links.to(served.files(user).holder, file.id, name=file.name)

    app = make(served, download_url)
    site = site_of(served, settings)
    ready = Readiness.of_site(site, identity=partial(tokens_fault, app.auth))
    scraped.faults = ready.faults
    reloads.prepare += [site.prepare, partial(prepare_tokens, app.auth, site)]
    await asyncio.to_thread(site.tokens.rotate_after, KEY_S, now=time.time())
    about = About(name=app.name, kind=served.kind, servers=served.servers, problems=lambda: served.problems)
    async with open_playground(site, about, port=port) as playground:
        streams = OpenStreams()
        web = build_app(
            app, site, playground=playground, ready=ready, streams=streams, session_ended=served.end_session
        )
        print(f"serving {app.name} at {own}/mcp", file=sys.stderr, flush=True)  # noqa: T201
        if playground is not None:
            _tell_address(settings.public_url or own, playground)
        await _serve_web(web, streams, served, settings, listener, tls, signals)


def _direct(app: FastMCP) -> Answerer | None:
    return app.direct if isinstance(app, Host) else None


def _tell_address(base: str, playground: Playground) -> None:
    """Print the address of the Playground, and again whenever its key has been used."""

    def tell() -> None:
        address = playground_address(base, playground)
        print(f"Playground: {address}", file=sys.stderr, flush=True)  # noqa: T201

    tell()
    if playground.key is not None:
        playground.key.tell = tell


def site_of(served: CallServices, settings: Settings) -> Site:
    """Return the services for the routes beside MCP."""
    return Site(
        settings=settings,
        library=served.library,
        events=served.events,
        tokens=served.links.tokens,
        tier=served.tier,
        observers=served.observers,
        named_files=served.named_files,
        faults=served.faults,
        stopping=lambda: served.drain.fault,
    )


async def _serve_web(
    web: Starlette,
    streams: OpenStreams,
    served: CallServices,
    settings: Settings,
    listener: socket.socket,
    tls: GatewayTls | None,
    signals: StopSignals,
) -> None:
    if tls is not None:
        tls.tell()
    config = uvicorn.Config(
        web,
        # `build_app` has the middleware, behind the one that records the peer.
        proxy_headers=False,
        http=HttpConnection if tls is None else TlsConnection,
        limit_concurrency=max(16, descriptors.limit() // 2),
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=_GRACE_S,
    )
    server = QuietServer(config, make_room=served.make_room, tls=None if tls is None else tls.context)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await _until(signals.stopped, serving)
    await _left(served.drain, settings.stop_delay_s, signals.again)
    # It still answers meanwhile: new calls get the reason for their refusal, and /readyz fails.
    await _drained(served.drain, settings.drain_s, signals.again)
    server.should_exit = True
    # Open event streams would delay the shutdown to the end of its grace period.
    served.events.close()
    await streams.end(_FAREWELL_S)
    await serving
