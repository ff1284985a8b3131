"""The commands for a server for each user of a file: `up`, `ps` and `down`."""

from pathlib import Path
from typing import Annotated

import typer

from runner.cli.exits import end_with
from runner.cli.options import AsJson, Config, LogOptions, given

__all__ = ["down", "ps", "up"]

_Folder = Annotated[
    Path | None,
    typer.Option("--folder", metavar="DIR", help="Where this installation keeps what it knows."),
]


def up(
    *,
    users: Annotated[Path, typer.Option("--users", metavar="FILE", help="The file of users, TOML or JSON.")],
    detach: Annotated[bool, typer.Option("--detach", help="Go on in the background.")] = False,
    folder: _Folder = None,
    as_json: AsJson = False,
    config: Config = None,
    logs: LogOptions,
) -> None:
    """Start a server for each user of a file, keep it running, and apply what has changed in the file."""
    flags = given(logs)

    def act() -> int:
        from runner.cli.run_up import Up, up_from_shell  # noqa: PLC0415 - only `up` needs it

        return up_from_shell(
            Up(users=users, folder=folder, config=config, detach=detach, as_json=as_json, flags=flags)
        )

    end_with(act)


def ps(*, folder: _Folder = None, as_json: AsJson = False) -> None:
    """List the servers of `runner up`, and what bounds each."""

    def act() -> int:
        from runner.cli.run_up import ps_from_shell  # noqa: PLC0415 - only `ps` needs it

        return ps_from_shell(folder, as_json=as_json)

    end_with(act)


def down(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME...]", help="Users; else all.")] = None,
    *,
    folder: _Folder = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """End the servers of `runner up`, of some users or of all; what they keep stays."""

    def act() -> int:
        from runner.cli.run_up import down_from_shell  # noqa: PLC0415 - only `down` needs it

        return down_from_shell(names or [], folder, config, as_json=as_json)

    end_with(act)
