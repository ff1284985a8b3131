"""Options of the command line, made from the declarations of settings."""

import re
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from runner.cli.app import app
from runner.cli.options import Flags, takes

BOUNDS = {
    *("--isolation", "--allow-net", "--allow-env", "--allow-run", "--allow-sockets", "--deny-run"),
    *("--allow-read", "--allow-write"),
}
WHOSE = {"--user", "--store"}
LOGS = {"--log-level", "--log-format"}
ADDRESS = {"--host", "--port"}
FLEET = {"--redis-url", "--redis-insecure", "--fleet-key-file"}


def options_of(command: str) -> set[str]:
    group = typer.main.get_command(app)
    found = group.get_command(None, command)  # type: ignore[attr-defined]
    return {name for part in found.params for name in part.opts if name.startswith("--")}


def parsed(*words: str) -> dict[str, object]:
    received: dict[str, object] = {}
    small = typer.Typer()

    @small.command()
    @takes("port", "allow_read", "idle_timeout_s", "deny_run", "allow_run")
    def command(name: Annotated[str, typer.Argument()], *, loud: bool = False, flags: Flags) -> None:
        received.update(name=name, loud=loud, flags=flags)

    done = CliRunner().invoke(small, words)
    return {**received, "exit": done.exit_code}


def test_command_gets_the_settings_that_were_given() -> None:
    read = ("--allow-read=/a,/b", "--allow-read=/c")

    received = parsed("x", "--port", "8000", "--timeout", "2.5", *read, "--deny-run", "--loud")

    flags = {"port": 8000, "allow_read": "/a,/b,/c", "idle_timeout_s": 2.5, "allow_run": ""}
    assert received == {"name": "x", "loud": True, "flags": flags, "exit": 0}
    assert parsed("x")["flags"] == {}


def test_option_of_no_setting_and_wrong_value_are_refused() -> None:
    assert parsed("x", "--port", "many") == {"exit": 2}
    assert parsed("x", "--user", "alice") == {"exit": 2}
    assert parsed("x", "--allow-run=git")["flags"] == {"allow_run": "git"}


def test_options_that_exclude_each_other_are_refused() -> None:
    refused = CliRunner().invoke(app, ["config", "--deny-run", "--allow-run=git"])

    assert refused.exit_code == 2
    assert refused.stderr == "runner: --allow-run and --deny-run: give one of them\n"


def test_help_of_an_option_is_the_first_sentence_of_its_setting() -> None:
    shown = CliRunner().invoke(app, ["serve", "--help"], terminal_width=200).output

    assert re.search(r"--port <int> +Port the HTTP server listens on; 0 takes a free one\.", shown)
    assert re.search(r"--allow-sockets +Whether tools .* own processes\.\n", shown)
    assert "](" not in shown
    assert ".md" not in shown


def test_help_of_all_commands_fits_one_screen() -> None:
    shown = CliRunner().invoke(app, ["--help"], terminal_width=100).output.splitlines()

    assert [line for line in shown if re.fullmatch(r"[A-Z]\w+:", line)] == [
        *("Options:", "Run:", "Files:", "Operate:", "Develop:"),
    ]
    assert len(shown) <= 40


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("serve", {"--transport", "--fresh", "--code-mode", *ADDRESS, *WHOSE, *FLEET}),
        ("worker", {"--fresh", "--store", *FLEET}),
        ("dev", {"--fresh", "--code-mode", *ADDRESS, *WHOSE}),
        ("proxy", {"--transport", "--contract", "--allow-fetch", "--code-mode", *ADDRESS, *WHOSE}),
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
