"""Configuration of the output guard, validated once. Names and defaults are those of the document.

`tools` has other limits for a tool or a server (`SERVER.*`); those of a tool take precedence.

Source: document 004, section 4.2; contradictions C25, C26, C28, C31; rules X3 and X4 of the conformance
cases; requirements S4-47 to S4-60.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    create_model,
    field_validator,
)

from runner.errors import UsageError
from runner.formats.nearest import nearest
from runner.output_guard.artifact_field import ArtifactField, preset
from runner.output_guard.operator_code import function_name
from runner.settings.values import PER_TOOL, overrides_of
from runner.store.retention import RetentionSettings

__all__ = [
    "MAX_ELEMENTS",
    "MAX_PARSE_CHARS",
    "BinaryDetection",
    "Budget",
    "GuardConfig",
    "Place",
    "ResourceHandling",
    "from_mapping",
]

PRESET_KEY = "$preset"
MAX_ELEMENTS = 100_000
"""Structures with more items are stored as a whole: a walk over that many takes a tenth of a second."""
MAX_PARSE_CHARS = 16 * 1024 * 1024
"""Longer JSON text is stored unparsed: parsed, it takes ten times its size in memory."""

_OLDER = {"auto_artifact_enabled": "auto_artifact_large_content", "artifact_fields": "tool_fields"}
_FIXED = (
    "cleanup_strategy", "max_artifacts", "max_artifacts_per_session", "max_artifacts_per_trace",
)  # fmt: skip
_SHARES = "set output_guard.retention.max_session_bytes; a call may fill a fifth of it, an artifact a tenth"
_REMOVED: Mapping[str | int, str] = {
    **dict.fromkeys(_FIXED, "its value is fixed; leave it out"),
    **dict.fromkeys(("max_artifact_bytes", "max_trace_bytes"), _SHARES),
    "servers": 'set it under [output_guard.tools."SERVER.*"]',
    "ttl_seconds": "set it for all tools, under [output_guard.retention]",
}
_SEPARATOR = re.compile(r"(__|[./:])")
_JOINTS = ("_", "-", ".", "/", ":")

Chars = Annotated[int, Field(gt=0), PER_TOOL]
Place = tuple[str | int, ...]
Named = Annotated[str, AfterValidator(function_name)]
_STRICT = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class BinaryDetection(BaseModel):
    """Settings for undeclared binary content."""

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
        description="Only take what begins as a known format does; else any base64 that is not text.",
    )

    @property
    def min_chars(self) -> int:
        """Return the length from which strings are examined; unreachable while detection is off."""
        return self.min_size_for_detection if self.enabled else sys.maxsize


class ResourceHandling(BaseModel):
    """Settings for MCP resources and links to them."""

    model_config = _STRICT

    enabled: bool = Field(default=True, description="Offer the resources of a server.")
    auto_read_if_size_under_bytes: int = Field(0, ge=0, description="Read links below this size; 0: never.")
    inline_text_if_under_chars: int = Field(10_000, ge=0, description="Text up to this stays inline.")
    cache_reads_to_artifacts: bool = Field(default=True, description="Keep what was read until it changes.")


class _Limits(BaseModel):
    model_config = _STRICT

    max_observation_chars: Chars = Field(50_000, description="Longest text that a model gets to read.")
    max_inline_size: Chars = Field(10_000, description="Longer strings are stored, in characters.")
    output_transformer: Annotated[Named | None, PER_TOOL] = Field(
        None, description="`module:function`: your own function, which has the first word."
    )


if TYPE_CHECKING:
    Budget = _Limits
else:
    about = "Limits of one tool or one server instead of the general ones."
    Budget = create_model("Budget", __config__=_STRICT, __doc__=about, **overrides_of(_Limits))


class GuardConfig(_Limits):
    """The output guard's settings."""

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
    retention: RetentionSettings = Field(
        default_factory=RetentionSettings, description="How much is kept of what was taken out, and how long."
    )
    tools: dict[str, Budget] = Field(
        default_factory=dict, description="Tool, server.tool, or server.* → its limits."
    )

    _reading_tools: bool = PrivateAttr(default=False)

    @field_validator("tool_fields", mode="before")
    @classmethod
    def _with_presets(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or PRESET_KEY not in value:
            return value
        named = value[PRESET_KEY]
        merged: dict[str, Any] = {}
        for name in [named] if isinstance(named, str) else named:
            merged |= preset(str(name))
        return merged | {key: fields for key, fields in value.items() if key != PRESET_KEY}

    def transformers(self) -> dict[str, Place]:
        """Return the names of all functions of the operator, each with a place in the settings."""
        named_limits: list[tuple[Place, _Limits]] = [(("tools", key), own) for key, own in self.tools.items()]
        return {
            limits.output_transformer: (*place, "output_transformer")
            for place, limits in [*named_limits, ((), self)]
            if limits.output_transformer is not None
        }

    def fields_of(self, tool: str, server: str | None) -> tuple[ArtifactField, ...]:
        """Return the fields of a tool, regardless of prefixes in its name or in the configured key."""
        return tuple(field for _, field in self.matching(tool, server))

    def matching(self, tool: str, server: str | None) -> Iterator[tuple[str, ArtifactField]]:
        """Yield the fields of a tool, each with the key that matches the tool."""
        called = _spellings(tool, server)
        for key, fields in self.tool_fields.items():
            for field in fields:
                if key in called or (field.preset and _ends_with(tool, key)):
                    yield key, field

    def budgets_of(self, tool: str, server: str | None) -> Iterator[tuple[Place, Budget]]:
        """Yield the limits of a tool with their places in the settings; later ones take precedence."""
        # Those of a server come before those of a tool.
        for called in ({f"{server}.*"}, _spellings(tool, server)):
            yield from ((("tools", key), budget) for key, budget in self.tools.items() if key in called)

    def for_call(self, tool: str, server: str | None) -> Self:
        """Return the configuration with the limits of this tool and server in place."""
        if not self.tools:
            return self
        update: dict[str, Any] = {}
        for _, budget in self.budgets_of(tool, server):
            update |= budget.model_dump(exclude_none=True)
        return self.model_copy(update=update)

    @property
    def reading_tools(self) -> bool:
        """Return whether a model has tools to read removed content: references name them then."""
        return self._reading_tools

    def with_reading_tools(self) -> Self:
        """Return the configuration of a server that offers such tools."""
        made = self.model_copy()
        made._reading_tools = True
        return made


def from_mapping(
    table: Mapping[str, Any],
    *,
    where: str = "output_guard",
    place: Callable[..., str] = lambda *_: "",
) -> GuardConfig:
    """Return the configuration in a table of a file, or in any mapping.

    Args:
        table: The mapping.
        where: Its name in errors.
        place: Returns the beginning of a sentence about a key, with the file and line.

    Raises:
        UsageError: It is invalid; the message has each place, its value and the allowed values.
    """
    try:
        return GuardConfig.model_validate(table)
    except ValidationError as error:
        keys = [(fault, (where, *_written(fault["loc"], table))) for fault in error.errors()]
        faults = [place(*key) + _sentence(fault, key) for fault, key in keys]
        raise UsageError("\n".join(faults)) from None


def _written(place: Place, table: Mapping[str, Any]) -> Place:
    """Return a place in terms of the keys in the file, which may be deprecated ones."""
    if not place:
        return place
    older = next((old for old, new in _OLDER.items() if new == place[0] and old in table), place[0])
    held = table.get(str(older))
    if len(place) == 1 and isinstance(held, Mapping) and PRESET_KEY in held:
        return (older, PRESET_KEY)
    return (older, *place[1:])


def _spellings(tool: str, server: str | None) -> frozenset[str]:
    """Return every key that matches this tool: bare, and with each prefix that a host may have added."""
    parts = _SEPARATOR.split(tool)
    # `a__b__tool` → `b__tool`, `tool`.
    names = [name for at in range(0, len(parts), 2) if (name := "".join(parts[at:]))]
    if server and tool.startswith((f"{server}_", f"{server}-")):
        names.append(tool[len(server) + 1 :])
    respelled = [name.replace(*pair) for name in names for pair in (("__", "."), (".", "__"))]
    prefixed = [f"{server}{joint}{name}" for name in names for joint in (".", "__") if server]
    return frozenset((*names, *respelled, *prefixed))


def _ends_with(tool: str, key: str) -> bool:
    """Return whether a tool's name is `key` after a prefix with any separator."""
    return tool.endswith(key) and tool[-len(key) - 1 : -len(key)] in _JOINTS


def _sentence(fault: Any, written: Place) -> str:
    place = ".".join(map(str, written))
    if fault["type"] == "extra_forbidden":
        if written[-1] in _REMOVED:
            return f"{place}: the setting was removed: {_REMOVED[written[-1]]}"
        near = nearest(str(fault["loc"][-1]), _known_names(), most=1)
        return f"{place} is not a setting" + (f"; did you mean {near[0]}?" if near else "")
    message = fault["msg"].removeprefix("Value error, ")
    return f"{place}: {message} (got {str(fault['input'])[:80]!r})"


def _known_names() -> list[str]:
    models: list[type[BaseModel]] = [GuardConfig, BinaryDetection, ResourceHandling, ArtifactField, Budget]
    return [name for model in models for name in model.model_fields]
