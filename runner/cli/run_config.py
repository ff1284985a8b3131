"""`runner config --tool NAME`: which rules of the output guard apply to a tool, and where each was given."""

from dataclasses import asdict
from typing import Any

from runner.output_guard.guard import config_of, file_name
from runner.output_guard.rules_report import AppliedRule, rules_of
from runner.settings.settings import Settings

__all__ = ["explanation", "explanation_text"]

_VALUE_MAX_CHARS = 90


def explanation(settings: Settings, tool: str, server: str | None) -> list[dict[str, Any]]:
    """Return the rules that apply to a tool, as JSON has them."""
    return [asdict(rule) for rule in _rules(settings, tool, server)]


def explanation_text(settings: Settings, tool: str, server: str | None) -> str:
    """Return the rules that apply to a tool, one a line: `name = value  (origin; why)`."""
    of = f"{tool} of {server}" if server else tool
    lines = [
        f"{rule.name} = {_short(rule.value)}  ({rule.origin}; {rule.because})"
        for rule in _rules(settings, tool, server)
    ]
    if not any(line.startswith("field ") for line in lines):
        lines.append("no field of this tool is known to hold files; detection finds what it returns")
    return "\n".join([f"output guard, for {of}:", *(f"  {line}" for line in lines)])


def _rules(settings: Settings, tool: str, server: str | None) -> list[AppliedRule]:
    return list(rules_of(config_of(settings), tool, server, file_name(settings) or "default"))


def _short(value: object) -> str:
    text = "(not set)" if value is None else str(value)
    return text if len(text) <= _VALUE_MAX_CHARS else f"{text[:_VALUE_MAX_CHARS]}…"
