"""The command that works with a user's files: `files`."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from runner.cli.exits import end_with
from runner.cli.options import AsJson, Config, LogOptions, UserOptions, given
from runner.cli.start import load_told
from runner.errors import UsageError
from runner.system.logging_setup import set_up

__all__ = ["files"]


def files(
    action: Annotated[str, typer.Argument(metavar="ls|put|get|rm|context|end-session")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[PATH... | NAME...]", help="Paths to put; else names.")
    ] = None,
    *,
    session: Annotated[str, typer.Option(metavar="NAME", help="Session the files are used in.")] = "cli",
    as_json: AsJson = False,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="put: keep the file by this name.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="PATH", help="get: file or folder to write.")] = None,
    force: Annotated[bool, typer.Option("--force", help="get: overwrite.")] = False,
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="ls: list so many at most, and say how to go on.")
    ] = None,
    cursor: Annotated[
        str | None, typer.Option(metavar="TEXT", help="ls: go on where a page has ended.")
    ] = None,
    whose: UserOptions,
    config: Config = None,
    logs: LogOptions,
) -> None:
    """List, put, get and remove a user's files, tell a model of them, or end their session."""
    flags = {"log_level": "warning", **given(whose, logs)}
    told = {"action": action, "words": tuple(words or ()), "as_json": as_json, "name": name}
    pages = {"limit": limit, "cursor": cursor}
    end_with(lambda: _files(flags, config, session, {**told, "out": out, "force": force, **pages}))


def _files(flags: Mapping[str, Any], config: Path | None, session: str, told: Mapping[str, Any]) -> int:
    from runner.cli.run_files import FilesOptions, files_from_shell  # noqa: PLC0415
    from runner.files.my_files import open_library  # noqa: PLC0415
    from runner.homes.homes import Homes  # noqa: PLC0415
    from runner.users.identity import resolve  # noqa: PLC0415 - only what works with files needs these

    options = FilesOptions(**told)
    settings = load_told(flags, config, whole=True)
    set_up(settings.log_level, settings.log_format)
    if settings.store_scheme in ("memory", "none"):
        raise UsageError(
            f"store = {settings.store} keeps no file beyond its process, so a shell has nothing to work "
            "with; set store (RUNNER_STORE) to a file:// or s3:// URL"
        )
    user = resolve(settings, transport="stdio", claims=None, host=settings.host)
    files = open_library(settings).of(user.name, session)
    return asyncio.run(files_from_shell(files, Homes.of(settings), options))
