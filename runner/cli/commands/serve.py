"""`runner serve`: tool files over MCP."""

import asyncio
from collections.abc import Callable
from typing import Literal

import typer

from runner.cli.options import ADDRESS, BOUNDS, FLEET, LOGS, WHOSE, Config, Files, Flags, takes
from runner.cli.start import (
    as_configured,
    explained,
    for_one_user,
    load_and_warn,
    of_fleet,
    start_server,
    stopped_by_signals,
)
from runner.settings.settings import Settings
from runner.system.importing import import_whole
from runner.worker.targets import check_targets
from sandbox.host.launch import Launched

__all__ = ["serve"]


@takes("transport", *ADDRESS, *WHOSE, *BOUNDS, "code_mode", "fresh", *FLEET, *LOGS)
def serve(context: typer.Context, files: Files, *, config: Config = None, flags: Flags) -> int:
    """Serve tool files until a signal or the end of standard input."""
    targets = check_targets(files)
    # A wrong file name is answered before these are imported.
    from runner.server.ahead import transport_of  # noqa: PLC0415

    configured = as_configured(start_server(flags, config), targets)
    transport = transport_of(configured)
    settings = for_one_user(configured, transport)

    def reread() -> Settings:
        then = load_and_warn(flags, settings.config_source, whole=True)
        return for_one_user(as_configured(then, targets), transport)

    serving = _load_and_serve(settings, transport, targets, context.obj, reread)
    return asyncio.run(stopped_by_signals(explained(serving, targets)))


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
    fleet = of_fleet(settings, "engine").FleetEngine.open if settings.is_fleet else None
    user = first_user(settings, transport) if fleet is None else None
    opened = Ahead(Toolset.open(settings, targets, user=user, launched=launched))
    try:
        # Importing FastMCP takes a second. Meanwhile the forkserver loads the files.
        served = await asyncio.to_thread(import_whole, "runner.server.serve")
        status: int = await served.serve(settings, transport, opened, reread, fleet=fleet)
    finally:
        await opened.discard()
    return status
