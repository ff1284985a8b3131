"""The command line, from `runner serve` to `runner schema`. Its names and exit codes are a contract.

What a command takes and does is in `runner.cli.commands`.

Source: `docs/cli.md`.
"""

import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer

from runner.cli.commands.audit import audit
from runner.cli.commands.call import call
from runner.cli.commands.files import files
from runner.cli.commands.project import init, install, trust
from runner.cli.commands.report import check, doctor, schema, selftest, show_config
from runner.cli.commands.serve import dev, proxy, reload, serve, worker
from runner.cli.commands.up import up
from runner.cli.commands.users import users
from runner.cli.exits import EXIT_USAGE, say
from runner.cli.options import grouped
from runner.errors import UsageError
from runner.settings.rights import spell_out
from sandbox.host.launch import Launched

__all__ = ["app", "main"]

_COMMANDS: dict[str, Callable[..., None]] = {
    "serve": serve,
    "worker": worker,
    "dev": dev,
    "proxy": proxy,
    "reload": reload,
    "up": up,
    "call": call,
    "doctor": doctor,
    "config": show_config,
    "check": check,
    "init": init,
    "trust": trust,
    "install": install,
    "files": files,
    "users": users,
    "audit": audit,
    "selftest": selftest,
    "schema": schema,
}

# Commands of earlier releases, each with what replaces it.
_REMOVED = {
    "test": "save the requests of the Playground as pytest (Save as pytest), or use `runner call` in a test",
    "ps": "systemd or Docker keeps the servers; use systemctl list-units 'toolcell@*', or docker compose ps",
    "down": "systemd or Docker keeps the servers; use systemctl stop toolcell@NAME, or docker compose down",
}

app = typer.Typer(
    name="runner",
    help="Serve a FastMCP file so that every call runs in its own confined, killable process.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _name, _command in _COMMANDS.items():
    app.command(_name)(grouped(_command))


def main(launched: Launched | None = None) -> None:
    """Run the command line.

    Args:
        launched: A forkserver's process for `serve` and `call`, which stays the caller's to discard.
    """
    try:
        arguments = spell_out(sys.argv[1:])
    except UsageError as error:
        sys.exit(say(error, EXIT_USAGE))
    if arguments and arguments[0] in _REMOVED:
        sys.exit(say(UsageError(f"runner {arguments[0]} was removed: {_REMOVED[arguments[0]]}"), EXIT_USAGE))
    app(arguments, obj=launched)


@app.callback(invoke_without_command=True)
def _version(
    *, show: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False
) -> None:
    """Serve a FastMCP file so that every call runs in its own confined, killable process."""
    if show:
        print(version("toolcell"))  # noqa: T201
        raise typer.Exit


if __name__ == "__main__":
    main()
