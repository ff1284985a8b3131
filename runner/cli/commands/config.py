"""`runner config`: the effective settings and their origins; or the rules of the output guard for a tool."""

from dataclasses import asdict
from typing import Annotated

import typer

from runner.cli.exits import Report
from runner.cli.options import BOUNDS, LOGS, WHOSE, AsJson, Config, Flags, takes
from runner.cli.start import load_and_warn
from runner.output_guard.guard import config_of, file_name
from runner.output_guard.rules_report import AppliedRule, rules_of
from runner.settings.sources import config_report, config_text

__all__ = ["config"]

_VALUE_MAX_CHARS = 90


@takes(*WHOSE, *BOUNDS, "fresh", *LOGS)
def config(
    *,
    as_json: AsJson = False,
    tool: Annotated[
        str | None, typer.Option("--tool", metavar="NAME", help="Print the output rules that apply to it.")
    ] = None,
    server: Annotated[str | None, typer.Option("--server", metavar="NAME", help="The tool's server.")] = None,
    config: Config = None,
    flags: Flags,
) -> Report:
    """Print each setting with its value and its origin."""
    settings = load_and_warn(flags, config)
    if tool is None:
        return Report(config_report(settings), config_text(settings), indent=2)
    rules = list(rules_of(config_of(settings), tool, server, file_name(settings) or "default"))
    text = _text(rules, f"{tool} of {server}" if server else tool)
    return Report([asdict(rule) for rule in rules], text, indent=2)


def _text(rules: list[AppliedRule], tool: str) -> str:
    """Return the rules that apply to a tool, one a line: `name = value  (origin; why)`."""
    lines = [f"{rule.name} = {_short(rule.value)}  ({rule.origin}; {rule.because})" for rule in rules]
    if not any(line.startswith("field ") for line in lines):
        lines.append("no field of this tool is known to hold files; detection finds what it returns")
    return "\n".join([f"output guard, for {tool}:", *(f"  {line}" for line in lines)])


def _short(value: object) -> str:
    text = "(not set)" if value is None else str(value)
    return text if len(text) <= _VALUE_MAX_CHARS else f"{text[:_VALUE_MAX_CHARS]}…"
