"""`runner dev`: tool files with the Playground, reloaded when they change."""

import asyncio

import typer

from runner.cli.options import ADDRESS, BOUNDS, LOGS, WHOSE, Config, Files, Flags, takes
from runner.cli.start import explained, for_one_user, load_and_warn, start_server, stopped_by_signals
from runner.worker.targets import check_targets

__all__ = ["dev"]


@takes(*ADDRESS, *WHOSE, *BOUNDS, "code_mode", "fresh", *LOGS)
def dev(context: typer.Context, files: Files, *, config: Config = None, flags: Flags) -> int:
    """Serve over HTTP until a signal."""
    options = {**flags, "transport": "http"}

    targets = check_targets(files)
    settings = for_one_user(start_server(options, config), "http")
    from runner.server.develop import develop  # noqa: PLC0415 - after the cheap checks

    developed = develop(
        settings,
        targets,
        reread=lambda: for_one_user(load_and_warn(options, settings.config_source, whole=True), "http"),
        launched=context.obj,
    )
    return asyncio.run(stopped_by_signals(explained(developed, targets)))
