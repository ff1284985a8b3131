"""Presets: which fields of which tools of a well-known server hold files, one file of `presets/` a server.

The keys are bare names of tools. A preset was asked for by name, so it fires whatever prefix a tool carries,
also one that an underscore joins to it.

Source: document 004, appendix B; requirements S4-1, S4-2, S4-101 and S4-109 to S4-111.
"""

import tomllib
from importlib.resources import files

from runner.output_guard.artifact_field import ArtifactField

__all__ = ["names", "preset"]

_FOLDER = files("runner.output_guard") / "presets"


def names() -> list[str]:
    """Return the names of the presets there are."""
    return sorted(
        entry.name.removesuffix(".toml") for entry in _FOLDER.iterdir() if entry.name.endswith(".toml")
    )


def preset(name: str) -> dict[str, tuple[ArtifactField, ...]]:
    """Return the fields of a preset by tool, for `tool_fields`.

    Raises:
        ValueError: No preset has that name; the message lists those there are.
    """
    if name not in names():
        raise ValueError(f"there is no preset {name!r}; there are: {', '.join(names())}")
    tools = tomllib.loads((_FOLDER / f"{name}.toml").read_text())
    return {
        tool: tuple(ArtifactField.model_validate(field).of_preset(name) for field in fields)
        for tool, fields in tools.items()
    }
