"""The command line, from `runner serve` to `runner schema`. Its names and exit codes are a contract.

A command is a module of `runner.cli.commands` with a function of that name, which returns the exit status
or a report. Only the module of the command that runs is imported.

Source: `docs/cli.md`.
"""

import functools
import importlib
import signal
import sys
from collections.abc import Mapping
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from runner.cli.exits import EXIT_USAGE, end_at_once, end_with, print_error
from runner.cli.options import spell_out
from runner.errors import UsageError
from sandbox.host.launch import Launched

__all__ = ["app", "main"]

_COMMANDS: Mapping[str, Mapping[str, str]] = {
    "Run": {
        "serve": "Serve tool files over MCP, on stdio or HTTP.",
        "dev": "Serve tool files with the Playground; reload what changes.",
        "proxy": "Proxy other MCP servers and guard their results.",
        "call": "Call one tool and print its result.",
        "worker": "Execute calls of a fleet's hosts on this machine.",
    },
    "Files": {
        "files": "List, put, get and remove a user's files, or end their session.",
    },
    "Operate": {
        "config": "Print the effective settings and the origin of each.",
        "trust": "Trust a runner.toml, fastmcp.json or mcp.json as it is now.",
        "doctor": "Report what this machine can enforce, with cures.",
        "selftest": "Try to break out; exit status 0 only if nothing got out.",
        "approve": "List calls that wait for an approval; approve or refuse one.",
        "reload": "Reload the configuration of running servers.",
        "users": "List, show and delete users, or revoke their links.",
        "audit": "Check that the audit log is whole, or make a digest.",
        "up": "Write units or a compose file with a server for each user.",
    },
    "Develop": {
        "init": "Write a working tool file, its test and a runner.toml.",
        "check": "Report mistakes in a tool file, with cures.",
        "learn": "Print the narrowest policy under which calls pass.",
        "install": "Write the entry that an MCP client needs to serve a tool file.",
        "schema": "Print the result contract as JSON Schema.",
    },
}
"""The commands by group, each with its help line."""

# Commands with nothing to clean up before their event loop handles signals.
_WITH_LOOP = frozenset({"call", "dev", "proxy", "serve", "worker"})

# An option of 0.1.0.
_ENGINE = UsageError(
    "runner --engine was removed: give --redis-url or RUNNER_REDIS_URL; with it, a fleet executes the calls"
)

_PLAIN: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
    "context_settings": {"max_content_width": 100},
}


class _Commands(TyperGroup):
    """The commands, each imported on demand."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return their names, in the order of the help."""
        return [name for group in _COMMANDS.values() for name in group]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or None if it does not exist."""
        line = next((group[cmd_name] for group in _COMMANDS.values() if cmd_name in group), None)
        if line is None:
            return None
        alone = typer.Typer(**_PLAIN)
        command = getattr(importlib.import_module(f"runner.cli.commands.{cmd_name}"), cmd_name)
        interrupted = end_at_once if cmd_name in _WITH_LOOP else signal.default_int_handler

        @functools.wraps(command)
        def ended(**values: Any) -> None:
            as_json = values.get("as_json", False)
            end_with(functools.partial(command, **values), as_json=as_json, interrupted=interrupted)

        alone.command(cmd_name, help=line)(ended)
        return typer.main.get_command(alone)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by group."""
        for group, commands in _COMMANDS.items():
            with formatter.section(group):
                formatter.write_dl(list(commands.items()))


app = typer.Typer(
    name="runner",
    cls=_Commands,
    help="Serve a FastMCP file so that every call runs in its own confined, killable process.",
    no_args_is_help=True,
    **_PLAIN,
)


def main(launched: Launched | None = None) -> None:
    """Run the command line.

    Args:
        launched: A forkserver's process for `serve` and `call`; the caller discards it.
    """
    try:
        arguments = spell_out(sys.argv[1:])
    except UsageError as error:
        sys.exit(print_error(error, EXIT_USAGE))
    # Words after `--` are the command of another program.
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if any(word.partition("=")[0] == "--engine" for word in own):
        sys.exit(print_error(_ENGINE, EXIT_USAGE))
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
