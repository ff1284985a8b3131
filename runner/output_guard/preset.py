"""Presets: which fields of which tools of a well-known server hold files, one file of `presets/` a server.

The keys are bare names of tools, so a preset fires whatever prefix a tool carries.

Source: document 004, appendix B; requirements S4-101, S4-109 to S4-111.
"""

import tomllib
from importlib.resources import files
from typing import Any

__all__ = ["names", "preset"]

_FOLDER = files("runner.output_guard") / "presets"


def names() -> list[str]:
    """Return the names of the presets there are."""
    return sorted(
        entry.name.removesuffix(".toml") for entry in _FOLDER.iterdir() if entry.name.endswith(".toml")
    )


def preset(name: str) -> dict[str, Any]:
    """Return the fields of a preset by tool, as a mapping for `tool_fields`.

    Raises:
        ValueError: There is no preset of that name; the message lists those there are.
    """
    if name not in names():
        raise ValueError(f"there is no preset {name!r}; there are: {', '.join(names())}")
    return tomllib.loads((_FOLDER / f"{name}.toml").read_text())
