"""`runner config`: the effective settings and their origins; or the rules of the output guard for a tool.

Source: document 004, section 4.2.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import typer

from runner.cli.exits import Report
from runner.cli.options import BOUNDS, LOGS, WHOSE, AsJson, Config, Flags, takes
from runner.cli.start import load_and_warn
from runner.output_guard.config import Budget, GuardConfig
from runner.output_guard.guard import config_of
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
    file = settings.config_file.name if settings.config_file else "default"
    rules = list(_rules(config_of(settings), tool, server, file))
    return Report(rules, _text(rules, f"{tool} of {server}" if server else tool), indent=2)


def _rules(config: GuardConfig, tool: str, server: str | None, file: str) -> Iterator[Mapping[str, object]]:
    """Yield the rules that apply to a tool: its limits, then the fields that are known to hold files."""
    for name in Budget.model_fields:
        value, origin, because = getattr(config, name), "default", "general"
        if name in config.model_fields_set:
            origin = file
        for (table, key), budget in config.budgets_of(tool, server):
            if (own := getattr(budget, name)) is not None:
                value, origin, because = own, file, f"key {key!r} of {table}"
        yield {"name": name, "value": value, "origin": origin, "because": because}
    for key, field in config.matching(tool, server):
        only = ", where it is large" if field.only_large else ""
        yield {
            "name": f"field {field.field_path}",
            "value": f"{field.content_type}{only}: {field.summary_template}",
            # For the operator, the source of a preset is the file that enables it.
            "origin": f"preset {field.preset}, {file}" if field.preset else file,
            "because": f"key {key!r} of tool_fields",
        }


def _text(rules: Sequence[Mapping[str, object]], tool: str) -> str:
    """Return the rules that apply to a tool, one per line: `name = value  (origin; why)`."""
    lines = [f"{one['name']} = {_short(one['value'])}  ({one['origin']}; {one['because']})" for one in rules]
    if not any(line.startswith("field ") for line in lines):
        lines.append("no field of this tool is known to hold files; detection finds what it returns")
    return "\n".join([f"output guard, for {tool}:", *(f"  {line}" for line in lines)])


def _short(value: object) -> str:
    text = "(not set)" if value is None else str(value)
    return text if len(text) <= _VALUE_MAX_CHARS else f"{text[:_VALUE_MAX_CHARS]}…"
