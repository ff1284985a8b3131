"""The command that calls one tool: `call`."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from runner.cli.exits import end_at_once, end_with
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
from runner.settings.targets import check_targets
from sandbox.host.launch import Launched

__all__ = ["call"]


def call(
    context: typer.Context,
    file: File,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="Name of the tool.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[name=value | name:=json | name=@path]...")
    ] = None,
    *,
    args: Annotated[str | None, typer.Option(metavar="JSON", help="All arguments as one object.")] = None,
    put: Annotated[
        list[Path] | None, typer.Option("--file", metavar="PATH", help="Put a file into My Files first.")
    ] = None,
    as_json: AsJson = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write artifacts to this folder.")] = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="Longest silence.")] = None,
    total_timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="Longest call.")] = None,
    session: Annotated[str, typer.Option(metavar="NAME", help="Session the call belongs to.")] = "cli",
    whose: UserOptions,
    config: Config = None,
    bounds: ConfinementOptions,
    workers: WorkerOptions,
    logs: LogOptions,
) -> None:
    """Call one tool and print its result; progress and notices go to standard error."""
    timeouts = given(idle_timeout_s=timeout, total_timeout_s=total_timeout)
    flags = {"log_level": "warning", **given(whose, bounds, workers, logs), **timeouts}
    told: dict[str, Any] = {
        "tool": tool,
        "words": arguments or [],
        "args": args,
        "put": put or [],
        "as_json": as_json,
    }
    told |= {"out": out, "session": session}
    end_with(lambda: _call(file, flags, config, told, context.obj), interrupted=end_at_once)


def _call(
    file: str,
    flags: Mapping[str, Any],
    config: Path | None,
    told: Mapping[str, Any],
    launched: Launched | None,
) -> int:
    target = check_targets([file])[0]
    # What the tool prints goes to this terminal, and what it raises into the error.
    settings = start(flags, config).model_copy(update={"tool_output": "drop"})
    from runner.cli.arguments import parse_arguments  # noqa: PLC0415 - after the cheap checks
    from runner.cli.run_call import CallOptions, call_from_shell  # noqa: PLC0415
    from runner.users.identity import resolve  # noqa: PLC0415

    user = resolve(settings, transport="stdio", claims=None, host=settings.host)
    options = CallOptions(
        target=target,
        tool=told["tool"],
        arguments=parse_arguments(told["words"], told["args"]),
        files=tuple(told["put"]),
        as_json=told["as_json"],
        out=told["out"],
        session=told["session"],
    )
    called = call_from_shell(settings, user, options, launched=launched)
    return asyncio.run(explained(called, [target]))
