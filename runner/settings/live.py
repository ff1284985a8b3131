"""Reload of settings marked `LIVE`, named limits, approvals and secrets; other settings need a restart.

If a resource limit changes, users' processes are replaced.

Source: `docs/operating.md`, "Reload the configuration".
"""

from collections.abc import Iterator, Mapping
from typing import Any

from runner.settings.execution import ExecutionSettings, SettingsT, ToolSettings, is_pattern
from runner.settings.secrets import SecretSettings
from runner.settings.settings import Settings
from runner.settings.sources import config_report
from runner.settings.values import LIVE

__all__ = ["changes", "same_limits", "with_live"]

_LIVE = [name for name, field in Settings.model_fields.items() if LIVE in field.metadata]
_LIVE_OF_TOOL = [name for name in _LIVE if name in ToolSettings.model_fields]


def with_live(now: SettingsT, then: SettingsT) -> SettingsT:
    """Return the settings of a running server with the live settings of a new configuration.

    Args:
        now: The settings in force.
        then: The new configuration.
    """
    update = {name: getattr(then, name) for name in (*_LIVE, "approvals", "call_limits")}
    return now.model_copy(update={**update, "tools": _tools(now, then), "secrets": _secrets(now, then)})


def same_limits(one: ExecutionSettings, other: ExecutionSettings) -> bool:
    """Return whether two settings have equal resource limits, general and for every tool."""
    tools = {None, *one.tools, *other.tools}
    return all(one.limits(tool) == other.limits(tool) for tool in tools)


def changes(now: Settings, then: Settings) -> dict[str, str]:
    """Return the differences from other settings, each with a sentence that shows no secret."""
    before, after = dict(_leaves(now.model_dump())), dict(_leaves(then.model_dump()))
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    was, is_now = config_report(now), config_report(then)
    found = {name: f"{name} = {_value(is_now, name)}, was {_value(was, name)}" for name in names}
    if _patterns(now) != _patterns(then):
        listed = [", ".join(_patterns(settings)) or "none" for settings in (then, now)]
        found["tools"] = f"patterns of tools in their order: {listed[0]}; were {listed[1]}"
    return found


def _patterns(settings: ExecutionSettings) -> list[str]:
    return [name for name in settings.tools if is_pattern(name)]


def _tools(now: ExecutionSettings, then: ExecutionSettings) -> dict[str, ToolSettings]:
    if _patterns(now) != _patterns(then):
        # The order of tables decides which of them applies to a tool, and so on its rights.
        return dict(now.tools)
    nothing = ToolSettings()
    return {
        tool: now.tools.get(tool, nothing).model_copy(
            update={name: getattr(then.tools.get(tool, nothing), name) for name in _LIVE_OF_TOOL}
        )
        for tool in {**now.tools, **then.tools}
    }


def _secrets(now: ExecutionSettings, then: ExecutionSettings) -> dict[str, SecretSettings]:
    """Return the new secrets, but keep a present one if tools could read the new one's file."""
    hidden = now.private_paths
    able = {
        name: secret for name, secret in then.secrets.items() if secret.file is None or secret.file in hidden
    }
    unchanged = {name: now.secrets[name] for name in then.secrets if name not in able and name in now.secrets}
    return {**able, **unchanged}


def _value(report: Mapping[str, Mapping[str, object]], name: str) -> object:
    value = report.get(name, {}).get("value")
    return "(not set)" if value is None else value


def _leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, object]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
