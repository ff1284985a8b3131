"""The command that works with the users of an installation: `users`."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from runner.cli.exits import end_with
from runner.cli.options import AsJson, Config, LogOptions, Store, given
from runner.cli.start import load_told
from runner.system.logging_setup import set_up

__all__ = ["users"]


def users(
    action: Annotated[str, typer.Argument(metavar="list|show|delete|revoke")],
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The user.")] = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="delete: do it.")] = False,
    now: Annotated[bool, typer.Option("--now", help="delete: also while a call is under way.")] = False,
    token: Annotated[str | None, typer.Option(metavar="PREFIX", help="revoke: one link's token.")] = None,
    as_json: AsJson = False,
    store: Store = None,
    config: Config = None,
    logs: LogOptions,
) -> None:
    """List users, show what belongs to one, remove it, or end their links and browser sessions."""
    flags = given(logs, store=store)
    told = {"action": action, "name": name, "yes": yes, "now": now, "token": token, "as_json": as_json}
    end_with(lambda: _users(flags, config, told))


def _users(flags: Mapping[str, Any], config: Path | None, told: Mapping[str, Any]) -> int:
    from runner.cli.administration import Administration  # noqa: PLC0415 - only this command needs these
    from runner.cli.run_users import UsersOptions, users_from_shell  # noqa: PLC0415

    options = UsersOptions(**told)
    settings = load_told(flags, config, whole=True)
    set_up(settings.log_level, settings.log_format)
    return asyncio.run(users_from_shell(Administration(settings=settings), options))
