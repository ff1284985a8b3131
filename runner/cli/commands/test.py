"""The command that makes a saved set of requests: `test`."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from runner.cli.exits import end_with
from runner.cli.options import (
    AsJson,
    Config,
    ConfinementOptions,
    File,
    LogOptions,
    UserOptions,
    WorkerOptions,
    given,
)
from runner.cli.start import explained, start
from runner.errors import UsageError
from runner.settings.targets import check_targets
from sandbox.host.launch import Launched

__all__ = ["run_requests"]


def run_requests(
    context: typer.Context,
    file: File,
    requests: Annotated[
        str,
        typer.Argument(metavar="REQUESTS", help="File of requests that the Playground saved; - reads them."),
    ],
    *,
    server: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only requests that were saved for this server.")
    ] = None,
    as_json: AsJson = False,
    whose: UserOptions,
    config: Config = None,
    bounds: ConfinementOptions,
    workers: WorkerOptions,
    logs: LogOptions,
) -> None:
    """Make the requests of a set against a tool file, and say which gave what is expected of them."""
    flags = {"log_level": "warning", **given(whose, bounds, workers, logs)}
    end_with(lambda: _test(file, requests, server, flags, config, context.obj, as_json=as_json))


def _test(
    file: str,
    requests: str,
    server: str | None,
    flags: Mapping[str, Any],
    config: Path | None,
    launched: Launched | None,
    *,
    as_json: bool,
) -> int:
    target = check_targets([file])[0]
    from runner.cli.request_set import read_requests  # noqa: PLC0415 - after the cheap checks

    listed = read_requests(_text(requests))
    settings = start(flags, config)
    from runner.cli.run_set import run_set  # noqa: PLC0415
    from runner.users.identity import resolve  # noqa: PLC0415

    user = resolve(settings, transport="stdio", claims=None, host=settings.host)
    made = run_set(settings, user, target, listed, server=server, as_json=as_json, launched=launched)
    return asyncio.run(explained(made, [target]))


def _text(requests: str) -> str:
    try:
        return sys.stdin.read() if requests == "-" else Path(requests).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the requests in {requests} cannot be read: {error}") from error
