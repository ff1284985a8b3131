"""The commands that go on until they are told to stop: `serve`, `worker`, `dev`, `proxy`; and `reload`."""

import asyncio
import importlib
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from runner.cli.exits import EXIT_INTERRUPTED, end_at_once, end_with
from runner.cli.options import (
    AddressOptions,
    AsJson,
    Config,
    ConfinementOptions,
    Contract,
    FleetOptions,
    LogOptions,
    Store,
    Transport,
    UserOptions,
    WorkerOptions,
    given,
)
from runner.cli.start import as_configured, explained, load_checked, start
from runner.errors import UsageError
from runner.settings.one_user import for_one_user
from runner.settings.settings import Settings
from runner.settings.targets import check_targets
from runner.system.allocator import keep_little
from runner.system.importing import import_whole
from sandbox.host.descriptors import raise_limit
from sandbox.host.launch import Launched

__all__ = ["dev", "proxy", "reload", "serve", "worker"]

_Files = Annotated[
    list[str], typer.Argument(metavar="FILE...", help="Files with an MCP server, packages, modules.")
]


def serve(
    context: typer.Context,
    files: _Files,
    *,
    transport: Transport = None,
    address: AddressOptions,
    whose: UserOptions,
    config: Config = None,
    bounds: ConfinementOptions,
    workers: WorkerOptions,
    fleet: FleetOptions,
    logs: LogOptions,
) -> None:
    """Serve tool files over MCP: stdio when standard input is a pipe, HTTP when it is a terminal."""
    flags = given(address, whose, bounds, workers, fleet, logs, transport=transport)
    end_with(lambda: _serve(files, flags, config, context.obj), interrupted=end_at_once)


def worker(
    files: _Files,
    *,
    store: Store = None,
    config: Config = None,
    bounds: ConfinementOptions,
    workers: WorkerOptions,
    fleet: FleetOptions,
    logs: LogOptions,
) -> None:
    """Execute calls of hosts that serve the same files with --engine docket, on this machine."""
    flags = given(bounds, workers, fleet, logs, store=store)
    end_with(lambda: _worker(files, flags, config), interrupted=end_at_once)


def dev(
    context: typer.Context,
    files: _Files,
    *,
    address: AddressOptions,
    whose: UserOptions,
    config: Config = None,
    bounds: ConfinementOptions,
    workers: WorkerOptions,
    logs: LogOptions,
) -> None:
    """Serve tool files with the Playground, and load them anew when they change."""
    flags = given(address, whose, bounds, workers, logs, transport="http")
    end_with(lambda: _dev(files, flags, config, context.obj), interrupted=end_at_once)


def proxy(
    target: Annotated[
        list[str], typer.Argument(metavar="URL | mcp.json | -- COMMAND...", help="Servers to stand before.")
    ],
    *,
    transport: Transport = None,
    address: AddressOptions,
    whose: UserOptions,
    config: Config = None,
    contract: Contract = None,
    allow_fetch: Annotated[
        bool | None,
        typer.Option("--allow-fetch", help="Commands such as npx and uvx may fetch packages and run them."),
    ] = None,
    bounds: ConfinementOptions,
    logs: LogOptions,
) -> None:
    """Stand in front of other MCP servers: their tools are treated like our own, or their results guarded."""
    own = given(transport=transport, contract=contract, allow_fetch=allow_fetch)
    flags = {**given(address, whose, bounds, logs), **own}
    end_with(lambda: _proxy(target, flags, config), interrupted=end_at_once)


def reload(
    *,
    pid: Annotated[int | None, typer.Option(metavar="PID", help="Only this server.")] = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Have running servers read limits, tokens and secrets anew; no call is lost."""
    end_with(lambda: _reload(config, pid, as_json=as_json))


def _reload(config: Path | None, pid: int | None, *, as_json: bool) -> int:
    from runner.cli.run_reload import reload_from_shell  # noqa: PLC0415 - only `reload` needs it

    return reload_from_shell(load_checked({}, config), pid, as_json=as_json)


def _serve(files: list[str], flags: Mapping[str, Any], config: Path | None, launched: Launched | None) -> int:
    targets = check_targets(files)
    # A wrong file name is answered before these are imported.
    from runner.server.ahead import transport_of  # noqa: PLC0415

    configured = as_configured(_start(flags, config), targets)
    transport = transport_of(configured)
    settings = for_one_user(configured, transport)

    def reread() -> Settings:
        return for_one_user(as_configured(_again(flags, settings), targets), transport)

    serving = _load_and_serve(settings, transport, targets, launched, reread)
    return asyncio.run(_stopped_by_signals(explained(serving, targets)))


def _worker(files: list[str], flags: Mapping[str, Any], config: Path | None) -> int:
    targets = check_targets(files)
    settings = _start(flags, config)
    if settings.engine != "docket":
        raise UsageError("a worker node works for a fleet; say which engine it has: --engine docket")
    serve_node = _of_fleet(settings, "serve_node").serve_node
    return asyncio.run(_stopped_by_signals(explained(serve_node(settings, targets), targets)))


def _of_fleet(settings: Settings, module: str) -> Any:
    """Return a module of the fleet, once the settings are known to be those of one.

    Raises:
        UsageError: They are not, or the packages that it needs are not installed.
    """
    try:
        found = importlib.import_module(f"runner.fleet.{module}")
    except ModuleNotFoundError as error:
        if error.name not in ("docket", "redis"):
            raise
        raise UsageError(
            "the engine docket needs packages that are not installed; install toolcell[fleet]"
        ) from error
    importlib.import_module("runner.fleet.serve_node").check_of_fleet(settings)
    return found


async def _load_and_serve(
    settings: Settings,
    transport: Literal["stdio", "http"],
    targets: list[str],
    launched: Launched | None,
    reread: Callable[[], Settings],
) -> int:
    # A wrong file name or setting is answered before these are imported.
    from runner.server.ahead import Ahead, first_user  # noqa: PLC0415
    from runner.toolset.toolset import Toolset  # noqa: PLC0415
    from runner.users.identity import check_startable  # noqa: PLC0415

    check_startable(settings, transport)
    remote = _of_fleet(settings, "engine").FleetEngine.open if settings.engine == "docket" else None
    user = first_user(settings, transport) if remote is None else None
    opened = Ahead(Toolset.open(settings, targets, user=user, launched=launched))
    try:
        # FastMCP takes a second to import. Meanwhile the forkserver loads the files.
        served = await asyncio.to_thread(import_whole, "runner.server.serve")
        status: int = await served.serve(settings, transport, opened, reread, engine=remote)
    finally:
        await opened.discard()
    return status


def _start(flags: Mapping[str, Any], config: Path | None) -> Settings:
    """Do what `start` does for a server: it may have many descriptors, since each user costs some, and lasts.

    So what it no longer uses, it gives back.
    """
    settings = start(flags, config, whole=True)
    raise_limit()
    keep_little()
    return settings


def _again(flags: Mapping[str, Any], settings: Settings) -> Settings:
    """Read again the configuration file that a server was started with, and no other."""
    return load_checked(flags, settings.config_source, whole=True)


async def _stopped_by_signals(server: Coroutine[Any, Any, int]) -> int:
    """Run a server; a signal that comes during its start ends it in order, as one that comes later does."""
    came: list[int] = []
    serving = asyncio.ensure_future(server)

    def stop(number: int) -> None:
        came.append(number)
        serving.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    try:
        return await serving
    except asyncio.CancelledError:
        # The server has left in order what it had begun. What goes on is a thread that imports, which nobody
        # can interrupt and which takes many seconds where the machine is busy.
        logging.shutdown()
        os._exit(EXIT_INTERRUPTED if signal.SIGINT in came else 0)


def _dev(files: list[str], flags: Mapping[str, Any], config: Path | None, launched: Launched | None) -> int:
    targets = check_targets(files)
    settings = for_one_user(_start(flags, config), "http")
    from runner.server.develop import develop  # noqa: PLC0415 - after the cheap checks

    developed = develop(
        settings,
        targets,
        reread=lambda: for_one_user(_again(flags, settings), "http"),
        launched=launched,
    )
    return asyncio.run(_stopped_by_signals(explained(developed, targets)))


def _proxy(words: list[str], flags: Mapping[str, Any], config: Path | None) -> int:
    from runner.proxy.targets import read_targets  # noqa: PLC0415 - only `proxy` needs these

    # What is ignored in a file is logged.
    settings = _start(flags, config)
    targets = read_targets(words)
    # After the cheap checks.
    serve_proxy = import_whole("runner.proxy.run").serve_proxy
    proxied = serve_proxy(settings, targets, lambda: _again(flags, settings))
    return asyncio.run(_stopped_by_signals(proxied))
