"""One field of one tool that is known to hold a file: where it is, what it holds, what a model is told.

Source: document 004, section 3.4; requirements S4-28 to S4-32; contradiction C26.
"""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator

from runner.formats.mime import is_mime
from runner.output_guard.selectors import parse

__all__ = ["ArtifactField"]


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
        """Return the name of the preset that it comes from, if it does."""
        return self._preset

    def of_preset(self, name: str) -> Self:
        """Return a copy of this field that says which preset it comes from."""
        made = self.model_copy()
        made._preset = name
        return made
