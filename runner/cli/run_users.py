"""`runner users`: who there is, what belongs to each, and taking it away.

Source: `docs/cli.md`, "Users".
"""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from runner.cli.administration import Account, Administration
from runner.contract.error_messages import envelope
from runner.errors import CallError, UsageError
from runner.formats.human_numbers import human_size
from runner.formats.terminal_text import json_text, one_line

__all__ = ["ACTIONS", "UsersOptions", "users_from_shell"]

ACTIONS = ("list", "show", "delete", "revoke")
"""The commands behind `runner users`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsersOptions:
    """What one `runner users` was asked to do.

    Attributes:
        action: One of `ACTIONS`.
        name: The user, for all but `list`.
        as_json: Print exactly one JSON document.
        yes: Whether `delete` is meant.
        now: Whether `delete` waits for no call.
        token: The token that `revoke` means, or how it begins.

    Raises:
        UsageError: There is no such action, or something given has no meaning for it.
    """

    action: str
    name: str | None = None
    as_json: bool = False
    yes: bool = False
    now: bool = False
    token: str | None = None

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise UsageError(f"there is no `runner users {self.action}`; it is one of {', '.join(ACTIONS)}")
        if (self.name is None) != (self.action == "list"):
            takes = "no name" if self.action == "list" else "the name of one user"
            raise UsageError(f"`runner users {self.action}` takes {takes}")
        if self.action != "delete" and (self.yes or self.now):
            raise UsageError("--yes and --now belong to `runner users delete`")
        if self.action != "revoke" and self.token is not None:
            raise UsageError("--token belongs to `runner users revoke`")


async def users_from_shell(administration: Administration, options: UsersOptions) -> int:
    """Do what was asked, print the answer, and return the exit status.

    Raises:
        UsageError: It cannot be done; the message says why.
    """
    try:
        document, text = await _answer(administration, options)
    except CallError as error:
        print(f"runner: {error.message}", file=sys.stderr)  # noqa: T201
        document, text = envelope(error), ""
        if not options.as_json:
            return error.code.exit_status
        _print(json_text(document))
        return error.code.exit_status
    except ValueError as error:
        raise UsageError(f"the user name {options.name!r} cannot be used: {error}") from error
    _print(json_text(document) if options.as_json else text)
    return 0


async def _answer(administration: Administration, options: UsersOptions) -> tuple[Mapping[str, Any], str]:
    name = options.name or ""
    match options.action:
        case "list":
            accounts = await administration.accounts()
            return {"users": [asdict(account) for account in accounts]}, "\n".join(map(_line, accounts))
        case "show":
            account = await administration.account(name)
            if not account.is_known:
                raise UsageError(f"nothing belongs to the user {name!r}; `runner users list` names everybody")
            return asdict(account), _lines(asdict(account))
        case "delete":
            if not options.yes:
                told = _lines(asdict(await administration.account(name)))
                raise UsageError(f"this would remove for good what belongs to {name!r}:\n{told}\nGive --yes")
            removed = await administration.delete(name, now=options.now)
            return removed, _lines(removed)
        case _:
            revoked = asdict(administration.revoke(name, prefix=options.token or ""))
            return revoked, _lines(revoked)


def _line(account: Account) -> str:
    running = "  a call is under way" if account.calls_running else ""
    home = "" if account.home is None else f"  home {human_size(account.home_bytes)}"
    return f"{one_line(account.user)}  {account.files} files, {human_size(account.bytes)}{home}{running}"


def _lines(said: Mapping[str, Any]) -> str:
    lines = []
    for key, value in said.items():
        items = value if isinstance(value, list) else [value]
        lines += [f"{key}: {one_line(str(item))}" for item in items]
    return "\n".join(lines)


def _print(text: str) -> None:
    if text:
        sys.stdout.write(text + "\n")
    sys.stdout.flush()
