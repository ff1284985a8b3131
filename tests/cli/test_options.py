"""Options of the command line: a group is written down once, and a command that takes it has all of it."""

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from runner.cli.app import app
from runner.cli.options import (
    AddressOptions,
    ConfinementOptions,
    LogOptions,
    Transport,
    UserOptions,
    given,
    grouped,
)

BOUNDS = {
    *("--isolation", "--allow-net", "--allow-env", "--allow-run", "--allow-sockets", "--deny-run"),
    *("--allow-read", "--allow-write"),
}
WHOSE = {"--user", "--store"}
LOGS = {"--log-level", "--log-format"}
ADDRESS = {"--host", "--port"}
FLEET = {"--engine", "--redis-url", "--redis-insecure", "--fleet-key-file"}


def options_of(command: str) -> set[str]:
    found = typer.main.get_command(app).commands[command]  # type: ignore[attr-defined]
    return {name for part in found.params for name in part.opts if name.startswith("--")}


def parsed(*words: str) -> dict[str, object]:
    told: dict[str, object] = {}
    small = typer.Typer()

    @small.command()
    @grouped
    def command(
        name: Annotated[str, typer.Argument()],
        *,
        transport: Transport = None,
        address: AddressOptions,
        logs: LogOptions,
    ) -> None:
        told.update(name=name, transport=transport, address=address, logs=logs)

    done = CliRunner().invoke(small, words)
    return {**told, "exit": done.exit_code}


def test_a_command_gets_its_groups_filled_from_the_options_of_their_fields() -> None:
    told = parsed("x", "--port", "8000", "--log-level", "debug", "--transport", "http")

    assert told == {
        "name": "x",
        "transport": "http",
        "address": AddressOptions(port=8000),
        "logs": LogOptions(log_level="debug"),
        "exit": 0,
    }


def test_an_option_of_no_group_and_a_wrong_value_are_refused() -> None:
    assert parsed("x", "--port", "many") == {"exit": 2}
    assert parsed("x", "--user", "alice") == {"exit": 2}
    assert parsed("x")["exit"] == 0


def test_only_what_was_given_becomes_a_setting() -> None:
    settings = given(
        UserOptions(user="alice"),
        ConfinementOptions(deny_run=True, allow_net=""),
        LogOptions(),
        transport=None,
        port=0,
    )

    assert settings == {"user": "alice", "allow_run": "", "allow_net": "", "port": 0}


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("serve", {"--transport", "--fresh", *ADDRESS, *WHOSE, *FLEET}),
        ("worker", {"--fresh", "--store", *FLEET}),
        ("dev", {"--fresh", *ADDRESS, *WHOSE}),
        ("proxy", {"--transport", "--contract", "--allow-fetch", *ADDRESS, *WHOSE}),
        (
            "call",
            {
                *("--args", "--file", "--json", "--out", "--timeout", "--total-timeout", "--session"),
                *("--fresh", *WHOSE),
            },
        ),
        ("config", {"--json", "--fresh", "--tool", "--server", *WHOSE}),
        ("check", {"--json"}),
    ],
)
def test_commands_that_run_tools_share_one_list_of_options(command: str, more: set[str]) -> None:
    assert options_of(command) == {"--config", *BOUNDS, *LOGS, *more}


def test_commands_that_run_no_tool_take_only_what_they_need() -> None:
    assert options_of("doctor") == {
        *("--json", "--repair", "--verify", "--whole-bucket", "--isolation", "--config"),
        *WHOSE,
    }
    assert options_of("files") == {
        *("--session", "--json", "--name", "--out", "--force", "--config", "--limit", "--cursor"),
        *WHOSE,
        *LOGS,
    }
    assert options_of("init") == set()
    assert options_of("schema") == set()
