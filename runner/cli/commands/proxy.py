"""`runner proxy`: other MCP servers behind this one."""

import asyncio
from typing import Annotated

import typer

from runner.cli.options import ADDRESS, BOUNDS, LOGS, WHOSE, Config, Flags, takes
from runner.cli.start import load_and_warn, start_server, stopped_by_signals
from runner.system.importing import import_whole

__all__ = ["proxy"]


@takes("transport", *ADDRESS, *WHOSE, "contract", "allow_fetch", "code_mode", *BOUNDS, *LOGS)
def proxy(
    target: Annotated[
        list[str], typer.Argument(metavar="URL | mcp.json | -- COMMAND...", help="Servers to proxy.")
    ],
    *,
    config: Config = None,
    flags: Flags,
) -> int:
    """Serve the tools of other servers until a signal."""
    from runner.proxy.targets import read_targets  # noqa: PLC0415 - before the rest of the room

    # Ignored settings of a file are logged.
    settings = start_server(flags, config)
    targets = read_targets(target)
    # After the cheap checks.
    serve_proxy = import_whole("runner.proxy.server").serve_proxy
    proxied = serve_proxy(settings, targets, lambda: load_and_warn(flags, settings.config_source, whole=True))
    return asyncio.run(stopped_by_signals(proxied))
