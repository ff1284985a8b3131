"""The result contract, version 2.1, as types: every field, every word it knows, every default.

One shape serves both directions: a tool returns it with `path` or `b64`, a caller gets it with `b64`,
`s3_ref` (`runner call --json`) or `uri` (over MCP). Unknown keys are allowed everywhere and kept.
`normalise` validates hints with these types; `contract_schema` is published.

Source: documents 000 (1 to 3), 001 (1, 6, 7, 8, 12), 002; contradictions C3, C8 to C13; requirements S0-3,
S0-5 to S0-12, S0-15, S0-16, S0-33 to S0-41, S1-3 to S1-8, S1-59 to S1-66, S1-88 to S1-93, S2-30 and S2-36
to S2-39.
"""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = [
    "CONTRACT_URI",
    "CONTRACT_VERSION",
    "FILE_LISTS",
    "Artifact",
    "ArtifactError",
    "Canvas",
    "DeferralHints",
    "DeferredArtifact",
    "Display",
    "ErrorEnvelope",
    "ErrorFacts",
    "FileHints",
    "Mode",
    "Persistence",
    "Result",
    "S3Ref",
    "StorageAction",
    "Viewer",
    "contract_schema",
]

CONTRACT_VERSION = "2.1"
CONTRACT_URI = f"runner://contract/{CONTRACT_VERSION}"
FILE_LISTS = ("artifacts", "deferred_artifacts")
"""The keys of a result that list files."""

Viewer = Literal["image", "pdf", "html", "code", "data", "auto"]
Mode = Literal["replace", "append", "split"]
StorageAction = Literal["store", "store_and_open", "temporary"]
Persistence = Literal["session", "ephemeral", "pinned"]

_TOOL: dict[str, Any] = {"writeOnly": True}
_RUNNER: dict[str, Any] = {"readOnly": True}
_CENTURY_HOURS = 876_000
_SOURCES = ("b64", "path", "s3_ref", "uri")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow", strict=True, defer_build=True)


class S3Ref(_Part):
    """Address in the object store of a file above the limit. Written by the runner, refused from a tool."""

    bucket: str = Field(description="Name of the bucket.")
    key: str = Field(description="`{user}/artifacts/{YYYYMMDD}/{name}`.")
    internal: Literal[True] = Field(default=True, description="Says that no user sees this place.")


class FileHints(_Part):
    """Hints of a tool on a file, beside its name and content. An unknown hint never fails."""

    description: str | None = Field(None, description="What the file is, for people.")
    viewer: Viewer = Field("auto", description="How to show it; an unknown word counts as `auto`.")
    category: str | None = Field(
        None,
        description="Where to file it; any word.",
        examples=["report", "dataset", "visualization", "draft"],
    )
    auto_open: bool = Field(default=False, description="Whether to show it at once.")
    size: int | None = Field(None, ge=0, description="Length in bytes; measured, whatever a tool says.")


class Artifact(FileHints):
    """A file that a call made. A tool gives either `path` or `b64`; `b64` wins over `path`."""

    name: str = Field(min_length=1, description="File name; made safe and unique in the result.")
    b64: str | None = Field(
        None, description="Content in base64, RFC 4648; either alphabet, blanks and padding do not matter."
    )
    path: str | None = Field(
        None, min_length=1, json_schema_extra=_TOOL, description="File below `/tmp/{username}/`."
    )
    s3_ref: S3Ref | None = Field(None, json_schema_extra=_RUNNER, description="Instead of `b64`, if large.")
    uri: str | None = Field(None, json_schema_extra=_RUNNER, description="`artifact://…`, to read it by.")
    sha256: str | None = Field(None, json_schema_extra=_RUNNER, description="Hex digest of its bytes.")
    mime: str = Field(description="MIME type; derived from the name where a tool leaves it out.")
    source: Any = Field(None, description="`uri` of the embedded resource it came as.")

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if all(getattr(self, name) is None for name in _SOURCES):
            raise ValueError("an artifact needs `path` or `b64`")
        return self


class DeferralHints(FileHints):
    """Hints of a tool on a deferred file, beside its name and path."""

    reason: str | None = Field(
        None,
        description="Why it is deferred; another word is kept, with a warning.",
        examples=["needs_editing", "draft", "incomplete", "awaiting_approval"],
    )
    next_actions: list[Any] | None = Field(None, description="What the user may do next.")
    expires_hours: float = Field(72, gt=0, le=_CENTURY_HOURS, description="Hours after which it is gone.")


class DeferredArtifact(DeferralHints):
    """A file kept for later calls and not handed on now."""

    name: str = Field(min_length=1, description="File name, by which later calls ask for it.")
    path: str | None = Field(
        None, min_length=1, json_schema_extra=_TOOL, description="File below `/tmp/{username}/`; required."
    )
    mime: str = Field(description="MIME type; derived from the name where a tool leaves it out.")
    b64: str | None = Field(None, json_schema_extra=_RUNNER, description="Content, for who asks for it.")
    s3_ref: S3Ref | None = Field(None, json_schema_extra=_RUNNER, description="Instead of `b64`, if large.")
    uri: str | None = Field(None, json_schema_extra=_RUNNER, description="`artifact://…`, to read it by.")
    sha256: str | None = Field(None, json_schema_extra=_RUNNER, description="Hex digest of its bytes.")
    status: str | None = Field(None, json_schema_extra=_RUNNER, description="`deferred`.")
    expires_at: str | None = Field(
        None, json_schema_extra=_RUNNER, description="When it is gone: ISO 8601 in UTC, with `Z`."
    )


class Display(_Part):
    """Display hints: the file to show, and its viewer. Unknown values mean the default."""

    open_canvas: bool | None = Field(
        None,
        json_schema_extra={"default": False},
        description="Whether to open the canvas. Where it is given it wins; else other hints may open it.",
    )
    primary_file: str | None = Field(None, description="`name` of the artifact to show first.")
    mode: Mode = Field("replace", description="Layout.")
    viewer_hint: Viewer = Field("auto", description="How to show the first file.")
    storage_action: StorageAction = Field(
        "store", description="`temporary` keeps the files out of My Files; `store_and_open` opens them."
    )
    category_hint: str | None = Field(None, description="Category of files that name none.")
    notification: str | None = Field(None, description="What to tell the user when the files are stored.")
    type: str | None = Field(None, description="`iframe`: a page, by `url`; another spelling of `canvas`.")
    url: str | None = Field(None, description="Address of the page, for `iframe`.")
    title: str | None = Field(None, description="Title of the page, for `iframe`.")
    sandbox: str | list[str] | None = Field(None, description="Wanted sandbox tokens, for `iframe`.")


class Canvas(_Part):
    """A page to keep open beside the chat, such as a dashboard."""

    open: bool = Field(default=True, description="Whether to open it.")
    id: str | None = Field(None, description="Names the tab; unique in the session.")
    persistence: Persistence = Field("session", description="How long the tab stays.")
    type: str = Field("iframe", description="`iframe`; others are reserved and not opened.")
    url: str | None = Field(None, description="http(s) address of an origin that the operator allows.")
    token: str | None = Field(None, description="Short-lived capability for the page; no model reads it.")
    title: str | None = Field(None, description="Title of the tab.")
    mode: Mode = Field("replace", description="Layout.")
    sandbox: str | list[str] | None = Field(None, description="Wanted sandbox tokens.")


class ErrorFacts(_Part):
    """`meta_data` of an error."""

    is_error: Literal[True]
    reason: str = Field(description="One word for the error code.")
    error_code: str = Field(pattern="^E_[A-Z_]+$", description="The code; `docs/cli.md` has the table.")
    details: dict[str, Any] | None = Field(None, description="Facts; the keys depend on the code.")
    retryable: bool = Field(description="Whether the same call may work later.")


class ErrorText(_Part):
    """`results` of an error."""

    error: str = Field(description="What happened, for people.")


class ErrorEnvelope(_Part):
    """A result that stands for an error, as the runner writes it."""

    results: ErrorText
    retryable: bool
    meta_data: ErrorFacts


class ArtifactError(_Part):
    """One file of a result that was not accepted: an item of `meta_data.artifact_errors`."""

    name: str | None = Field(description="The name the tool gave it.")
    reason: str = Field(description="One word, for example `invalid_path`.")
    error: ErrorEnvelope = Field(description="The error the file alone would have been.")


class Result(_Part):
    """The value that a tool returns and a caller gets. Only `results` is required."""

    results: Any = Field(description="The concise primary result, any JSON; an object is best.")
    meta_data: dict[str, Any] | None = Field(
        None, description="Small facts; above 4096 bytes of JSON a model does not read them."
    )
    retryable: bool | None = Field(
        None, description="Whether the same call may be made again; also in `meta_data`."
    )
    artifacts: list[Artifact] | None = Field(None, description="Files that the call made, in order.")
    deferred_artifacts: list[DeferredArtifact] | None = Field(
        None, description="Files kept for later calls, in order."
    )
    display: Display | None = Field(None, description="Which file to show, and how.")
    canvas: Canvas | None = Field(None, description="A page to keep open beside the chat.")
    links: list[Any] | None = Field(
        None, json_schema_extra=_RUNNER, description="Resource links of the tool, as given."
    )
    incomplete: list[Any] | None = Field(
        None, json_schema_extra=_RUNNER, description="File names that the tool announced without content."
    )
    meta_data_truncated: bool | None = Field(
        None, json_schema_extra=_RUNNER, description="True where a model does not read `meta_data`."
    )
    returned_file_names: list[Any] | None = Field(
        None, deprecated=True, json_schema_extra=_TOOL, description="Version 1; use `artifacts`."
    )
    returned_file_contents: list[Any] | None = Field(
        None, deprecated=True, json_schema_extra=_TOOL, description="Version 1; use `artifacts`."
    )


def contract_schema() -> dict[str, Any]:
    """Return the contract as a JSON Schema of `Result`; the error types are in its `$defs`."""
    schema = Result.model_json_schema()
    errors = ArtifactError.model_json_schema()
    defs = schema.pop("$defs") | errors.pop("$defs") | {"ArtifactError": errors}
    defs["Artifact"]["anyOf"] = [{"required": [name]} for name in _SOURCES]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": CONTRACT_URI}
    named = {"title": f"Tool result, contract version {CONTRACT_VERSION}"}
    return {**head, **schema, **named, "$defs": defs}
