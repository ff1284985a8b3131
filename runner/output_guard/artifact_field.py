"""Fields of tools that are known to hold files: the path, content and summary of each; presets of them.

A preset has the fields of a well-known server's tools, one file in `presets/` per server. The keys are bare
names of tools. A preset is enabled by name, so it matches tools with any prefix, even one joined by an
underscore.

Source: document 004, section 3.4 and appendix B; requirements S4-1, S4-2, S4-28 to S4-32, S4-101 and S4-109
to S4-111; contradiction C26.
"""

import tomllib
from importlib.resources import files
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator

from runner.formats.mime import is_mime
from runner.output_guard.selectors import parse

__all__ = ["ArtifactField", "preset", "preset_names"]

_FOLDER = files("runner.output_guard") / "presets"


class ArtifactField(BaseModel):
    """One field of one tool that holds a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    field_path: str = Field(description="Where it is: dots, `[0]`, `[*]` or JSONPath by name.")
    content_type: str = Field(
        "binary",
        min_length=1,
        description="`text`: stored as it is; `json`: any value, as JSON; anything else: base64.",
    )
    mime_type: str | None = Field(None, description="MIME type; by default what the content says.")
    summary_template: str = Field(
        "Downloaded {content_type} ({size} bytes)", description="What the model is told instead."
    )
    only_large: bool = Field(default=False, description="Leave it where it is up to `max_inline_size`.")
    _preset: str | None = PrivateAttr(default=None)

    @field_validator("field_path")
    @classmethod
    def _is_a_path(cls, path: str) -> str:
        parse(path)
        return path

    @field_validator("mime_type")
    @classmethod
    def _is_a_mime_type(cls, mime: str | None) -> str | None:
        if mime is not None and not is_mime(mime):
            raise ValueError(f"{mime!r} is not a MIME type; write type/subtype")
        return mime

    @property
    def holds(self) -> Literal["text", "json", "base64"]:
        """Return the encoding of the content."""
        return "text" if self.content_type == "text" else "json" if self.content_type == "json" else "base64"

    @property
    def preset(self) -> str | None:
        """Return the name of the preset that it comes from, if any."""
        return self._preset

    def of_preset(self, name: str) -> Self:
        """Return a copy of this field with the name of its preset."""
        made = self.model_copy()
        made._preset = name
        return made


def preset_names() -> list[str]:
    """Return the names of the available presets."""
    return sorted(
        entry.name.removesuffix(".toml") for entry in _FOLDER.iterdir() if entry.name.endswith(".toml")
    )


def preset(name: str) -> dict[str, tuple[ArtifactField, ...]]:
    """Return the fields of a preset by tool, for `tool_fields`.

    Raises:
        ValueError: No preset has that name; the message lists the available ones.
    """
    if name not in preset_names():
        raise ValueError(f"there is no preset {name!r}; there are: {', '.join(preset_names())}")
    tools = tomllib.loads((_FOLDER / f"{name}.toml").read_text())
    return {
        tool: tuple(ArtifactField.model_validate(field).of_preset(name) for field in fields)
        for tool, fields in tools.items()
    }
