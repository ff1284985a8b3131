"""`runner dev`: tool files with the Playground, loaded again when they change."""

import asyncio

import typer

from runner.cli.exits import end_at_once, end_with
from runner.cli.options import ADDRESS, BOUNDS, LOGS, WHOSE, Config, Files, Flags, takes
from runner.cli.serving import again, for_one_user, start_server, stopped_by_signals
from runner.cli.start import explained
from runner.worker.targets import check_targets

__all__ = ["dev"]


@takes(*ADDRESS, *WHOSE, *BOUNDS, "code_mode", "fresh", *LOGS)
def dev(context: typer.Context, files: Files, *, config: Config = None, flags: Flags) -> None:
    """Serve over HTTP until a signal."""
    options = {**flags, "transport": "http"}

    def act() -> int:
        targets = check_targets(files)
        settings = for_one_user(start_server(options, config), "http")
        from runner.server.develop import develop  # noqa: PLC0415 - after the cheap checks

        developed = develop(
            settings,
            targets,
            reread=lambda: for_one_user(again(options, settings), "http"),
            launched=context.obj,
        )
        return asyncio.run(stopped_by_signals(explained(developed, targets)))

    end_with(act, interrupted=end_at_once)
