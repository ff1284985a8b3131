"""Report of the rules for one tool with their sources: the output of `runner config --tool NAME`.

Source: document 004, section 4.2.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from runner.output_guard.config import Budget, GuardConfig

__all__ = ["AppliedRule", "rules_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedRule:
    """One rule that applies to a tool.

    Attributes:
        name: The setting, or the path of a field.
        value: What it says.
        origin: Where it was given: `runner.toml`, `preset tableau, runner.toml`, `default`.
        because: Why it applies: the key that matches the tool, or that it is general.
    """

    name: str
    value: object
    origin: str
    because: str


def rules_of(config: GuardConfig, tool: str, server: str | None, file: str) -> Iterator[AppliedRule]:
    """Yield the rules that apply to a tool: its limits, then the fields that are known to hold files.

    Args:
        config: The guard's settings.
        tool: Name of the tool, with or without a prefix.
        server: Name of its server, if it is one's.
        file: Name of the file in which the settings were written.
    """
    for name in Budget.model_fields:
        limits = [
            (place, limit)
            for place, budget in config.budgets_of(tool, server)
            if (limit := getattr(budget, name)) is not None
        ]
        if limits:
            place, limit = limits[-1]
            because = f"key {place[-1]!r} of {place[0]}"
            yield AppliedRule(name=name, value=limit, origin=file, because=because)
        else:
            origin = file if name in config.model_fields_set else "default"
            yield AppliedRule(name=name, value=getattr(config, name), origin=origin, because="general")
    for key, field in config.matching(tool, server):
        only = ", where it is large" if field.only_large else ""
        yield AppliedRule(
            name=f"field {field.field_path}",
            value=f"{field.content_type}{only}: {field.summary_template}",
            # A preset was asked for somewhere, and that is where it comes from for the operator.
            origin=f"preset {field.preset}, {file}" if field.preset else file,
            because=f"key {key!r} of tool_fields",
        )
