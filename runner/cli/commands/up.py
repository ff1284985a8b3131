"""The command that writes units or a compose file with a server for each user: `up`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from runner.cli.exits import end_with
from runner.cli.options import AsJson

__all__ = ["up"]


class _Format(StrEnum):
    """The formats of the files."""

    SYSTEMD = "systemd"
    COMPOSE = "compose"


def up(
    *,
    users: Annotated[Path, typer.Option("--users", metavar="FILE", help="The users file, TOML or JSON.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder of the files.")] = Path(
        "toolcell-up"
    ),
    kind: Annotated[_Format, typer.Option("--format", help="Units, or a compose file.")] = _Format.SYSTEMD,
    as_json: AsJson = False,
) -> None:
    """Write systemd units or a compose file with a server for each user, and print the commands to run."""

    def act() -> int:
        from runner.cli.run_up import up_from_shell  # noqa: PLC0415 - only `up` needs it

        return up_from_shell(users, out.absolute(), kind.value, as_json=as_json)

    end_with(act)
