"""All settings as one frozen value.

Constructing `Settings` reads nothing but its arguments; `sources.load` reads options, variables and
runner.toml.

Source: architecture, decision "Settings"; requirements S1-12 to S1-17; `docs/settings.md`.
"""

from collections.abc import Mapping

from pydantic import PrivateAttr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from runner.settings.execution import ServiceSettings
from runner.settings.parts import ServerSettings
from runner.settings.values import Flag

__all__ = ["Settings", "option_of"]


class Settings(ServerSettings, ServiceSettings, BaseSettings):
    """Every setting, checked. Times in seconds, sizes in the unit of their name."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix="RUNNER_", env_nested_delimiter="__", env_ignore_empty=True
    )

    # Set by `sources.load`: the origin of each value given, by dotted name.
    _origins: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take arguments only: `load` merges the sources itself, since it must know which won."""
        return (init_settings,)


def option_of(name: str) -> str:
    """Return the option of a setting, as `--port`, also where no command has one."""
    field = Settings.model_fields.get(name)
    marks = () if field is None else (mark for mark in field.metadata if isinstance(mark, Flag))
    return next((mark.name for mark in marks if mark.name), "--" + name.replace("_", "-"))
