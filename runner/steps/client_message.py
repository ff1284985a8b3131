"""Conversion of a processed result to the `tools/call` message for an MCP client.

Text never contains base64, keys, tokens or paths of artifacts. Bytes are included only if the client
requested them and the whole message stays within the limits of transports.

Source: document 001, section 6.2; rules N3, N6, N15 and P2 of the conformance cases; MCP `tools/call`;
requirements S0-4, S0-19, S0-23, S1-11, S1-21, S2-2, S2-7, S2-9, S2-11, S2-12 and S2-36 to S2-39.
"""

import enum
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from runner.artifacts.accept import ArtifactFile, Processed, without_lost
from runner.contract.display import decide
from runner.contract.jsonable import NotJsonError, jsonable, list_of, mapping_of, without
from runner.contract.models import FILE_LISTS
from runner.contract.normalise import flag_meta_data
from runner.formats.base64 import canonical, without_header
from runner.output_guard.guard import unfit
from runner.output_guard.schema_fit import satisfies
from runner.steps.file_references import FileReferences
from runner.steps.model_view import CARRIED, briefed, compact_json, legible, model_view, own_structured
from sandbox.call_value import call_value

__all__ = [
    "DISPLAY_META",
    "FACTS_META",
    "MESSAGE_MAX_BYTES",
    "RESULT_META",
    "Delivery",
    "is_open_schema",
    "referenced",
    "render",
]

MESSAGE_MAX_BYTES = 900_000
"""Longest message, in bytes: some clients refuse messages above 1 MB."""
_BLOCK_CHARS = 200

META_PREFIX = "toolcell/"
RESULT_META = META_PREFIX + "result"
CANVAS_META = META_PREFIX + "canvas"
DISPLAY_META = META_PREFIX + "display"
FACTS_META = META_PREFIX + "meta_data"
DOWNLOAD_META = META_PREFIX + "download"

_NO_FILES = FileReferences({})
_NOT_SHOWN = (
    "Not shown: {} bytes are too large for this message of at most {} bytes in all. "
    "Ask the tool for a smaller one, or for one at a time."
)
_ORIGINAL = "The original of the picture that follows, which was made smaller to fit into this message."
_TOO_LARGE = "the message would be too large for the transport"
_ANNOTATIONS = frozenset(
    {
        "type",
        "additionalProperties",
        "title",
        "description",
        "$schema",
        "$id",
        "$comment",
        "default",
        "examples",
    }
)


class Delivery(enum.Enum):
    """Delivery of artifact bytes to a client."""

    REFERENCE = "reference"
    INLINE = "inline"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """One form of the message; later forms are smaller."""

    bytes_inline: bool
    # Budget of characters for images and audio, in order; None for all of them.
    media_chars: int | None
    note: str | None


_SMALLEST = _Form(bytes_inline=False, media_chars=0, note=_TOO_LARGE)
_INLINE = (
    _Form(bytes_inline=True, media_chars=None, note=None),
    _Form(bytes_inline=False, media_chars=None, note=_TOO_LARGE),
    _SMALLEST,
)
_REFERENCE = (_Form(bytes_inline=False, media_chars=None, note=None), _SMALLEST)


@call_value
class _Draft:
    """The parts of one message."""

    processed: Processed
    wire: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None
    closed: bool
    form: _Form
    max_bytes: int
    download_url: Callable[[ArtifactFile], str] | None
    paths: FileReferences
    allowed_origins: Collection[str]
    smaller: Mapping[int, str]


def render(
    processed: Processed,
    *,
    wire: Mapping[str, Any],
    output_schema: Mapping[str, Any] | None,
    delivery: Delivery,
    max_bytes: int = MESSAGE_MAX_BYTES,
    download_url: Callable[[ArtifactFile], str] | None = None,
    allowed_origins: Collection[str] = (),
    smaller: Mapping[int, str] | None = None,
) -> dict[str, Any]:
    """Return the `tools/call` result for a client.

    A result that is not a contract value is sent as the tool's own server would send it, with its contract
    value in `_meta`. So is structured content if the tool's output schema is closed; otherwise
    `structuredContent` is the contract value. Facts too large for a model are in `_meta` only. The author's
    message of an exception comes first.

    Args:
        processed: The result.
        wire: The worker's result; empty without one.
        output_schema: The tool's output schema.
        delivery: How bytes are delivered to the client.
        max_bytes: Longest message.
        download_url: Makes download addresses, over HTTP.
        allowed_origins: Web origins whose pages a result may open.
        smaller: Smaller versions of pictures, in base64, by the index of their block.
    """
    closed = not is_open_schema(output_schema)
    named = (*processed.files, *processed.deferred)
    paths = _NO_FILES
    if named or processed.places:
        origins = ((file.origin, _standing_for(file)) for file in named)
        paths = FileReferences.of(origins, places=processed.places)
    try:
        sent: Mapping[str, Any] = jsonable(wire)
    except NotJsonError:
        # The contract value already reports this; nothing of the original can be sent.
        sent = {}

    def written(form: _Form) -> tuple[dict[str, Any], int]:
        draft = _Draft(
            processed=processed if form.bytes_inline or not named else without_lost(processed),
            wire=sent,
            output_schema=output_schema,
            closed=closed,
            form=form,
            max_bytes=max_bytes,
            download_url=download_url,
            paths=paths,
            allowed_origins=allowed_origins,
            smaller=smaller or {},
        )
        message = _message(draft)
        return message, len(compact_json(message).encode())

    message: dict[str, Any] = {}
    for form in _INLINE if delivery is Delivery.INLINE else _REFERENCE:
        message, size = written(form)
        if size <= max_bytes:
            break
    if form is _SMALLEST and size < max_bytes:
        # Of several pictures, the first ones that fit together stay.
        some, size = written(replace(form, media_chars=max_bytes - size))
        message = some if size <= max_bytes else message
    return message


def is_open_schema(schema: Mapping[str, Any] | None) -> bool:
    """Return whether any object, and so the contract value, satisfies an output schema."""
    if schema is None:
        return True
    return (
        schema.get("type", "object") == "object"
        and schema.get("additionalProperties", True) in (True, {})
        and not any(map(schema.get, schema.keys() - _ANNOTATIONS))
    )


def referenced(processed: Processed) -> dict[str, Any]:
    """Return a contract value with descriptions and URIs of its artifacts instead of their bytes."""
    processed = without_lost(processed)
    return {**processed.value, **_entries(processed, bytes_inline=False)}


def _message(draft: _Draft) -> dict[str, Any]:
    processed, paths = draft.processed, draft.paths
    value: dict[str, Any] = paths.value(without(processed.value, *FILE_LISTS), contents=True)
    value |= paths.value(_entries(processed, bytes_inline=draft.form.bytes_inline), contents=False)
    if draft.form.note is not None and processed.files:
        notes = {"delivery": Delivery.REFERENCE.value, "delivery_reason": draft.form.note}
        value["meta_data"] = {**value.get("meta_data", {}), **notes}
    value = flag_meta_data(value)
    # Whether the tool's own texts represent the result.
    has_own_texts = processed.is_own or (draft.closed and not processed.is_error)
    content = _content(draft, value, own_texts=has_own_texts)
    message: dict[str, Any] = {"content": content, "isError": processed.is_error}
    # The tool's own `_meta`, without keys that could pass for ours.
    own_meta = mapping_of(draft.wire.get("_meta"))
    meta = {key: item for key, item in own_meta.items() if not key.startswith(META_PREFIX)}
    if value.get("artifacts") or value.get("display") or value.get("canvas"):
        meta[DISPLAY_META] = decide(value, allowed_origins=draft.allowed_origins).to_json()
    if not (draft.closed or draft.processed.is_own):
        message["structuredContent"] = briefed(value)
        if value.get("canvas") != message["structuredContent"].get("canvas"):
            meta[CANVAS_META] = value["canvas"]
        if value.get("meta_data") != message["structuredContent"].get("meta_data"):
            meta[FACTS_META] = value["meta_data"]
    else:
        meta[RESULT_META] = value
        if has_own_texts and "structuredContent" in draft.wire:
            sent = draft.wire["structuredContent"]
            own = paths.value(sent, contents=not draft.form.bytes_inline)
            if draft.closed and own != sent and not satisfies(own, draft.output_schema or {}, was=sent):
                # The schema may require a path, for example by a pattern; then a reference is invalid.
                own = sent
            structured = own_structured(own, draft.output_schema)
            if structured is None:
                message = unfit(message, "that was called")
            else:
                message["structuredContent"] = structured
    if meta:
        message["_meta"] = meta
    if "resultType" in draft.wire:
        message["resultType"] = draft.wire["resultType"]
    return message


def _entries(processed: Processed, *, bytes_inline: bool) -> dict[str, list[dict[str, Any]]]:
    """Return the lists of files of a value, each file with its bytes or as a reference."""
    found: dict[str, list[dict[str, Any]]] = {}
    for key, files in zip(FILE_LISTS, (processed.files, processed.deferred), strict=True):
        entries = processed.value.get(key, ())
        if entries or files:
            pairs = zip(entries, files, strict=True)
            found[key] = [_entry(entry, file, bytes_inline=bytes_inline) for entry, file in pairs]
    return found


def _entry(entry: Mapping[str, Any], file: ArtifactFile, *, bytes_inline: bool) -> dict[str, Any]:
    reduced = without(entry, *CARRIED)
    if bytes_inline and "b64" in entry:
        return {"name": file.name, "b64": entry["b64"], **reduced}
    return {**reduced, "uri": file.uri, "sha256": file.sha256}


def _content(draft: _Draft, value: dict[str, Any], *, own_texts: bool) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = (
        []
        if own_texts
        else [
            *_message_blocks(draft),
            _text(compact_json(model_view(value))),
        ]
    )
    linked: set[str] = set()
    uris = {file.uri: file.id for file in draft.processed.files}
    by_block = {file.block: file for file in draft.processed.files if file.block is not None}
    left = draft.max_bytes if draft.form.media_chars is None else draft.form.media_chars
    for index, block in enumerate(list_of(draft.wire.get("content"))):
        file = by_block.get(index)
        is_seen = file is not None and _stays(block, file, draft.form)
        # In base64, with the JSON around it.
        chars = 4 * (file.size + 2) // 3 + _BLOCK_CHARS if file is not None else 0
        small = draft.smaller.get(index)
        if small is not None and isinstance(block, dict):
            block, chars = {**block, "data": small}, len(small) + _BLOCK_CHARS
        if file is not None and (not is_seen or (draft.form.media_chars is not None and chars > left)):
            about = _NOT_SHOWN.format(file.size, draft.max_bytes) if is_seen else None
            content.append(_link(file, draft.download_url, about=about))
            linked.add(file.id)
        else:
            left -= chars
            if file is not None and small is not None:
                content.append(_link(file, draft.download_url, about=_ORIGINAL))
                linked.add(file.id)
            elif file is not None and draft.processed.is_own:
                # The file itself is included; its metadata is in `_meta`.
                linked.add(file.id)
            own_blocks = _own_block(block, draft, own=own_texts, accepted=file)
            # A tool's `uri` may be of any JSON type.
            addresses = (each.get("uri") for each in own_blocks)
            linked |= {uris[uri] for uri in addresses if isinstance(uri, str) and uri in uris}
            content += own_blocks
    if own_texts and draft.processed.errors:
        content.append(_text("\n".join(_refusal_lines(draft.processed))))
    entries = value.get("artifacts", [])
    for entry, file in zip(entries, draft.processed.files, strict=True):
        if "b64" not in entry and file.id not in linked:
            content.append(_link(file, draft.download_url))
            linked.add(file.id)
    return content


def _message_blocks(draft: _Draft) -> list[dict[str, Any]]:
    """Return the author's message of an error that the tool raised, for clients that read only one text."""
    if draft.processed.failure is None or draft.wire.get("isError") is not True:
        return []
    return [
        {**block, "text": legible(draft.paths.text(block["text"]), own=True)}
        for block in list_of(draft.wire.get("content"))
        if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str)
    ]


def _own_block(
    block: object, draft: _Draft, *, own: bool, accepted: ArtifactFile | None
) -> list[dict[str, Any]]:
    """Return a content block of the tool as the client gets it, or nothing."""
    if not isinstance(block, dict):
        return [_text(compact_json(block))] if own else []
    match block.get("type"):
        case "text" if isinstance(block.get("text"), str) and (own or block["text"] in draft.processed.texts):
            return [{**block, "text": legible(draft.paths.text(block["text"]), own=own)}]
        case "resource_link":
            return [_reachable(block, draft.paths)]
        case "resource" if "blob" not in mapping_of(block.get("resource")):
            resource = block.get("resource")
            inner = _reachable(resource, draft.paths) if isinstance(resource, dict) else resource
            return [{**block, "resource": inner}]
        case "image" | "audio" | "resource" if accepted is not None:
            return [_whole(block, accepted)]
        case "text" | "image" | "audio" | "resource":
            return []
        case _:
            # The output guard has turned it into a text.
            return [dict(block)] if own else []


def _reachable(block: Mapping[str, Any], paths: FileReferences) -> dict[str, Any]:
    """Return a link, or an embedded resource, with the address of the stored file."""
    uri = block.get("uri")
    return {**block, "uri": paths.value(uri, contents=False)} if isinstance(uri, str) else dict(block)


def _whole(block: Mapping[str, Any], file: ArtifactFile) -> dict[str, Any]:
    """Return a block with its bytes in the form of base64 that all clients can read."""
    resource = block.get("resource")
    if isinstance(resource, dict):
        return {**block, "resource": {**resource, "blob": canonical(without_header(resource.get("blob")))}}
    return {**block, "data": canonical(without_header(block.get("data"))), "mimeType": file.mime}


def _stays(block: Mapping[str, Any], file: ArtifactFile, form: _Form) -> bool:
    """Return whether a block keeps its bytes; only images and audio for models do."""
    kind = block.get("type")
    if kind != "resource" and not file.mime.lower().startswith(f"{kind}/"):
        return False
    return form.bytes_inline or kind != "resource"


def _standing_for(file: ArtifactFile) -> str:
    """Return the replacement of a file's name; a file that was not stored has no URI."""
    return file.uri if file.is_stored else file.name


def _link(
    file: ArtifactFile, download_url: Callable[[ArtifactFile], str] | None, *, about: str | None = None
) -> dict[str, Any]:
    link: dict[str, Any] = {
        "type": "resource_link",
        "uri": file.uri,
        "name": file.name,
        "mimeType": file.mime,
        "size": file.size,
    }
    if about is not None:
        link["description"] = about
    if download_url is not None:
        link["_meta"] = {DOWNLOAD_META: download_url(file)}
    return link


def _refusal_lines(processed: Processed) -> list[str]:
    return [
        f"Not delivered: {error.name} ({error.reason}): {error.error.message}" for error in processed.errors
    ]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
