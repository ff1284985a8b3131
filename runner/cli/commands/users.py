"""`runner users`: list users, show the data of one, remove it, revoke links.

Source: `docs/cli.md`, "Users".
"""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

import typer

from runner.administration import Account, Administration
from runner.cli.exits import Report
from runner.cli.options import LOGS, AsJson, Config, Flags, takes
from runner.cli.start import load_and_warn
from runner.errors import UsageError
from runner.formats.human_numbers import human_size
from runner.formats.terminal_text import one_line
from runner.system.logging_setup import set_up

__all__ = ["users"]

_Action = Literal["list", "show", "delete", "revoke"]


@takes("store", *LOGS)
def users(
    action: Annotated[_Action, typer.Argument(metavar="list|show|delete|revoke")],
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The user.")] = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="delete: do it.")] = False,
    now: Annotated[bool, typer.Option("--now", help="delete: also while a call is in flight.")] = False,
    token: Annotated[str | None, typer.Option(metavar="PREFIX", help="revoke: one link's token.")] = None,
    as_json: AsJson = False,
    config: Config = None,
    flags: Flags,
) -> Report:
    """Work with the users of an installation."""
    if (name is None) != (action == "list"):
        wanted = "no name" if action == "list" else "the name of one user"
        raise UsageError(f"`runner users {action}` takes {wanted}")
    if action != "delete" and (yes or now):
        raise UsageError("--yes and --now belong to `runner users delete`")
    if action != "revoke" and token is not None:
        raise UsageError("--token belongs to `runner users revoke`")
    settings = load_and_warn(flags, config, whole=True)
    set_up(settings.log_level, settings.log_format)
    administration = Administration(settings=settings)
    try:
        answer = _answer(administration, action, name or "", yes=yes, now=now, token=token or "")
        return Report(*asyncio.run(answer))
    except ValueError as error:
        raise UsageError(f"the user name {name!r} cannot be used: {error}") from error


async def _answer(
    administration: Administration, action: _Action, name: str, *, yes: bool, now: bool, token: str
) -> tuple[Mapping[str, Any], str]:
    match action:
        case "list":
            accounts = await administration.accounts()
            lines = [f"{one_line(account.user)}  {_held(account)}" for account in accounts]
            return {"users": [asdict(account) for account in accounts]}, "\n".join(lines)
        case "show":
            account = await administration.account(name)
            if not account.is_known:
                raise UsageError(f"nothing belongs to the user {name!r}; `runner users list` names everybody")
            return asdict(account), _lines(asdict(account))
        case "delete":
            if not yes:
                held = _held(await administration.account(name))
                raise UsageError(f"this would remove all of {name!r}: {held}; give --yes")
            removed = await administration.delete(name, now=now)
            return removed, _lines(removed)
        case _:
            revoked = asdict(administration.revoke(name, prefix=token))
            return revoked, _lines(revoked)


def _held(account: Account) -> str:
    running = ", a call is under way" if account.calls_running else ""
    home = "" if account.home is None else f", home {human_size(account.home_bytes)}"
    return f"{account.files} files, {human_size(account.bytes)}{home}{running}"


def _lines(fields: Mapping[str, Any]) -> str:
    lines = []
    for key, value in fields.items():
        items = value if isinstance(value, list) else [value]
        lines += [f"{key}: {one_line(str(item))}" for item in items]
    return "\n".join(lines)
