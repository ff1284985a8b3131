"""All settings as one frozen value.

Constructing `Settings` reads nothing but its arguments; `sources.load` reads options, variables and
runner.toml.

Source: architecture, decision "Settings"; requirements S1-12 to S1-17; `docs/settings.md`.
"""

from collections.abc import Mapping

from pydantic import PrivateAttr

from runner.settings.execution import ServiceSettings
from runner.settings.parts import ServerSettings
from runner.settings.values import Flag

__all__ = ["Settings", "option_of"]


class Settings(ServerSettings, ServiceSettings):
    """Every setting, checked. Times in seconds, sizes in the unit of their name."""

    # Set by `sources.load`: the origin of each given value, by dotted name.
    _origins: Mapping[str, str] = PrivateAttr(default_factory=dict)


def option_of(name: str) -> str:
    """Return the option of a setting, such as `--port`, even if no command has it."""
    field = Settings.model_fields.get(name)
    marks = () if field is None else (mark for mark in field.metadata if isinstance(mark, Flag))
    return next((mark.name for mark in marks if mark.name), "--" + name.replace("_", "-"))
