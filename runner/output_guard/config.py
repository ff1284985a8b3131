"""How the output guard is set up, checked once. Names and defaults are those of the document.

Where a tool or a server needs other limits, `tools` and `servers` give them; a tool's come first.

Source: document 004, section 4.2; contradictions C25, C26, C28, C31; rules X3 and X4 of the
conformance cases.
"""

import difflib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, field_validator

from runner.errors import UsageError
from runner.mime import is_mime
from runner.output_guard.paths import parse
from runner.output_guard.preset import preset

__all__ = ["ArtifactField", "BinaryDetection", "Budget", "GuardConfig", "ResourceHandling", "from_mapping"]

PRESET_KEY = "$preset"

Chars = Annotated[int, Field(gt=0)]
_STRICT = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class ArtifactField(BaseModel):
    """One field of one tool that holds a file."""

    model_config = _STRICT

    field_path: str = Field(description="Where it is: dots, `[0]`, `[*]` or JSONPath by name.")
    content_type: str = Field(
        "binary", min_length=1, description="`pdf`, `image` or `binary`: base64; `text`: stored as it is."
    )
    mime_type: str | None = Field(None, description="MIME type; by default what the content says.")
    summary_template: str = Field(
        "Downloaded {content_type} ({size} bytes)", description="What the model is told instead."
    )

    @field_validator("field_path")
    @classmethod
    def _is_a_path(cls, path: str) -> str:
        parse(path)
        return path

    @field_validator("mime_type")
    @classmethod
    def _is_a_mime_type(cls, mime: str | None) -> str | None:
        if mime is not None and not is_mime(mime):
            raise ValueError(f"{mime!r} is no MIME type; write type/subtype")
        return mime


class BinaryDetection(BaseModel):
    """How encoded binary content is found where nothing declares it."""

    model_config = _STRICT

    enabled: bool = Field(default=True, description="Look for it at all.")
    signatures: dict[str, tuple[str, str]] = Field(
        default_factory=lambda: {
            "JVBERi": ("pdf", "application/pdf"),
            "iVBORw": ("png", "image/png"),
            "/9j/": ("jpeg", "image/jpeg"),
            "UEsDB": ("zip", "application/zip"),
        },
        description="Base64 prefix → name and MIME type, beside the formats known anyway.",
    )
    min_size_for_detection: int = Field(1000, gt=0, description="Shorter strings are left alone.")
    max_decode_bytes: int = Field(
        5_000_000, gt=0, description="How much is looked at to tell a format; never what is stored."
    )
    require_magic_bytes: bool = Field(
        default=True,
        description="Only take what begins as a known format does; else any base64 that is no text.",
    )


class ResourceHandling(BaseModel):
    """What is done with MCP resources and links to them."""

    model_config = _STRICT

    enabled: bool = Field(default=True, description="Offer the resources of a server.")
    auto_read_if_size_under_bytes: int = Field(0, ge=0, description="Read links below this size; 0: never.")
    inline_text_if_under_chars: int = Field(10_000, ge=0, description="Text up to this stays inline.")
    cache_reads_to_artifacts: bool = Field(default=True, description="Keep what was read until it changes.")


class Budget(BaseModel):
    """Limits of one tool or one server instead of the general ones."""

    model_config = _STRICT

    max_observation_chars: Chars | None = Field(None, description="Instead of the general limit.")
    max_inline_size: Chars | None = Field(None, description="Instead of the general limit.")


class GuardConfig(BaseModel):
    """The output guard's settings."""

    model_config = _STRICT

    max_inline_size: Chars = Field(10_000, description="Longer strings are stored, in characters.")
    auto_artifact_large_content: bool = Field(
        default=True,
        validation_alias=AliasChoices("auto_artifact_large_content", "auto_artifact_enabled"),
        description="Store long strings and large structures.",
    )
    binary_detection: BinaryDetection = Field(default_factory=BinaryDetection, description="Detection.")
    resources: ResourceHandling = Field(default_factory=ResourceHandling, description="MCP resources.")
    tool_fields: dict[str, tuple[ArtifactField, ...]] = Field(
        default_factory=dict,
        validation_alias=AliasChoices("tool_fields", "artifact_fields"),
        description="Tool, or server.tool → its fields that hold files; `$preset` names presets.",
    )
    default_summary_template: str = Field(
        "Binary content stored as artifact ({size} bytes)", description="Where no field says otherwise."
    )
    max_observation_chars: Chars = Field(50_000, description="Longest text that a model gets to read.")
    max_parse_bytes: Chars = Field(16 * 1024 * 1024, description="Longer JSON text is stored unparsed.")
    max_elements: Chars = Field(100_000, description="Structures with more items are stored as a whole.")
    max_artifacts: Chars = Field(
        100,
        description="A result that holds more files is stored in larger parts; stores have a limit a call.",
    )
    tools: dict[str, Budget] = Field(default_factory=dict, description="Tool, or server.tool → its limits.")
    servers: dict[str, Budget] = Field(default_factory=dict, description="Server → its limits.")

    @field_validator("tool_fields", mode="before")
    @classmethod
    def _with_presets(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or PRESET_KEY not in given:
            return given
        named = given[PRESET_KEY]
        merged: dict[str, Any] = {}
        for name in [named] if isinstance(named, str) else named:
            merged |= preset(str(name))
        return merged | {key: fields for key, fields in given.items() if key != PRESET_KEY}

    def fields_of(self, tool: str, server: str | None) -> tuple[ArtifactField, ...]:
        """Return the fields of a tool, whatever prefix its name or the configured key carries."""
        called = _spellings(tool, server)
        return tuple(field for key, found in self.tool_fields.items() if key in called for field in found)

    def for_call(self, tool: str, server: str | None) -> Self:
        """Return the configuration with the limits of this tool and server in place."""
        if not self.tools and not self.servers:
            return self
        called = _spellings(tool, server)
        budgets = [self.servers[server]] if server in self.servers else []
        budgets += [budget for key, budget in self.tools.items() if key in called]
        update: dict[str, int] = {}
        for budget in budgets:
            update |= budget.model_dump(exclude_none=True)
        return self.model_copy(update=update)


def from_mapping(given: Mapping[str, Any], *, where: str = "output_guard") -> GuardConfig:
    """Return the configuration that a table of a file, or any mapping, says.

    Raises:
        UsageError: Something in it is wrong; the message names each place, the value and what is allowed.
    """
    try:
        return GuardConfig.model_validate(given)
    except ValidationError as error:
        raise UsageError("; ".join(_sentence(fault, where) for fault in error.errors())) from None


def _spellings(tool: str, server: str | None) -> frozenset[str]:
    """Return every key that means this tool: bare, and with each prefix that a host may have added."""
    return frozenset(_prefixed(tool, server))


def _prefixed(tool: str, server: str | None) -> Iterator[str]:
    bare = _bare(tool, server)
    for name in dict.fromkeys((tool, *bare)):
        yield name
        if server:
            yield f"{server}.{name}"
            yield f"{server}__{name}"
    for separator, other in (("__", "."), (".", "__")):
        if separator in tool:
            yield tool.replace(separator, other)
            yield tool.rpartition(separator)[0].rpartition(separator)[2] + "." + tool.rpartition(separator)[2]


def _bare(tool: str, server: str | None) -> list[str]:
    """Return the names that are left when prefixes are taken off: `a__b__tool` → `b__tool`, `tool`."""
    found = []
    for separator in ("__", ".", "/", ":"):
        rest = tool
        while separator in rest:
            rest = rest.partition(separator)[2]
            if rest:
                found.append(rest)
    if server and tool.startswith((f"{server}_", f"{server}-")):
        found.append(tool[len(server) + 1 :])
    return found


def _sentence(fault: Any, where: str) -> str:
    place = ".".join([where, *(str(part) for part in fault["loc"])])
    if fault["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(fault["loc"][-1]), _known_names(), n=1)
        return f"{place} is no setting" + (f"; did you mean {near[0]}?" if near else "")
    said = fault["msg"].removeprefix("Value error, ")
    return f"{place}: {said} (got {str(fault['input'])[:80]!r})"


def _known_names() -> list[str]:
    models: list[type[BaseModel]] = [GuardConfig, BinaryDetection, ResourceHandling, ArtifactField, Budget]
    return [name for model in models for name in model.model_fields]
