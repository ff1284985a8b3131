"""Conversion of a tool's return value, of any version of the contract or none, to one contract value.

The value has the spelling of version 2.1. Its artifacts are checked and named, but still have the tool's
`path` or base64: `runner.artifacts` replaces those. Only decides, and never raises.

Source: rules N1 to N16 of the conformance cases; contradictions C3, C5, C6, C11, C13, C23, C45, C48;
requirements S0-1, S0-4, S0-21, S0-60, S0-63 to S0-67, S0-77 to S0-79, S1-1, S1-3, S1-58, S2-1, S2-7,
S2-8, S2-14, S2-17 to S2-24, S2-26, S2-27, S2-29, S2-31, S2-32, S2-34 and S2-35.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from runner.contract.error_messages import RefusedFile, envelope, invalid_result, legible, with_refusals
from runner.contract.intake import Intake, repaired
from runner.contract.jsonable import NotJsonError, jsonable
from runner.contract.models import Artifact, Canvas, DeferredArtifact, Display, Result
from runner.formats.nearest import likeness
from sandbox.call_value import call_value

__all__ = [
    "META_DATA_MAX_BYTES",
    "RESULTS_MAX_BYTES",
    "Normalised",
    "flag_meta_data",
    "is_small_meta_data",
    "lists_files",
    "normalise",
    "parsed",
]

META_DATA_MAX_BYTES = 4096
RESULTS_MAX_BYTES = 8192
"""Size of `results` as JSON, in bytes, above which there is a warning; nothing is cut."""

_FILE_KEYS = ("artifacts", "deferred_artifacts", "returned_file_names", "returned_file_contents")
# Types of the keys beside `results`. With another type, the object is data of another system.
_SHAPES: Mapping[str, type] = {
    **dict.fromkeys(("meta_data", "meta-data", "display", "canvas"), dict),
    **dict.fromkeys(("artifacts", "deferred_artifacts", "links", "incomplete"), list),
    **dict.fromkeys(("returned_file_names", "returned_file_contents"), list),
    "retryable": bool,
}
_LEGACY = ("returned_file_names", "returned_file_contents")
_KEYS = Result.model_fields.keys() | _SHAPES.keys()
_MEDIA = ("image", "audio")
# Keys of most results: a value, and no files.
_BARE = frozenset({"results"})
_MISSPELLED = "the tool returned no `results`, but {!r}: it may be misspelled"
_UNSPOKEN = "The tool reported an error and said nothing about it"


@call_value
class Normalised:
    """One result in the contract's current version.

    Attributes:
        value: The contract value; artifacts have `name`, `mime` and either `b64` or `path`.
        speaks_contract: Whether the tool returned an envelope, rather than a bare value or an object of
            another system; also true for a value without JSON form, which an envelope of ours replaces.
        texts: Texts of the tool besides the payload, for the model to read.
        links: The tool's `resource_link` blocks as given; also in `value`.
        origins: For each artifact of `value`, the string with which the tool gave it.
        blocks: Index of a content block → name of its artifact.
        renamed: The tool's file names → the final names.
        refusals: Files that were left out; also in `value`.
        warnings: Repairs, for the log. No contents of files or arguments.
    """

    value: dict[str, Any]
    speaks_contract: bool = False
    texts: tuple[str, ...] = ()
    links: tuple[Mapping[str, Any], ...] = ()
    origins: tuple[str | None, ...] = ()
    blocks: Mapping[int, str]
    renamed: Mapping[str, str]
    refusals: tuple[RefusedFile, ...] = ()
    warnings: tuple[str, ...] = ()


def normalise(wire: Mapping[str, Any], *, wrapped: bool) -> Normalised:
    """Return the contract value of one `tools/call` result.

    Args:
        wire: The result as on the wire, keys in camelCase.
        wrapped: Whether the tool's output schema has `x-fastmcp-wrap-result`: then
            `{"result": x}` is FastMCP's form of a bare `x`, not the author's object.
    """
    intake = Intake()
    blocks: dict[int, Mapping[str, Any]] = {}
    content = wire.get("content")
    for index, block in enumerate(content if isinstance(content, list) else ()):
        fault = _block_fault(block)
        if fault is None:
            blocks[index] = block
        else:
            intake.warnings.append(f"content block {index} {fault}, dropped")
    try:
        found, spoken = _payload(wire, blocks, intake.warnings)
        payload = jsonable(found)
        if isinstance(payload, dict) and payload.keys() == {"result"}:
            if not wrapped:
                warning = "the tool returned `result` and nothing else; taken as `results`"
                intake.warnings.append(warning)
            payload = payload["result"]
        links = [jsonable(block) for block in blocks.values() if block.get("type") == "resource_link"]
    except NotJsonError as error:
        refused = envelope(invalid_result("results", str(error)))
        warnings = (*intake.warnings, str(error))
        return Normalised(value=refused, speaks_contract=True, blocks={}, renamed={}, warnings=warnings)
    # Whether it is an envelope; a field that merely shares a name with ours is not enough.
    speaks = isinstance(payload, dict) and ("results" in payload or lists_files(payload))
    failed = wire.get("isError") is True
    if speaks:
        value = _marked(payload) if failed else dict(payload)
    elif failed:
        value = _error_value(payload, blocks)
    else:
        value = {"results": payload}
        # `result` besides other keys is ordinary data; alone it has been unwrapped.
        is_object = isinstance(payload, dict)
        name = _misspelled(key for key in payload if key != "result") if is_object else None
        if name is not None:
            intake.warnings.append(_MISSPELLED.format(name))
    texts = [] if failed and not speaks else spoken
    _take_files(value, blocks, intake)
    value = _mend(value, intake, links)
    results = value["results"]
    # A text is first measured by its characters; encoding a large one is expensive.
    if not isinstance(results, str) or len(results) > RESULTS_MAX_BYTES // 4:
        size = len(json.dumps(results, ensure_ascii=False).encode())
        if size > RESULTS_MAX_BYTES:
            heavy = f"`results` has {size} bytes, more than {RESULTS_MAX_BYTES}"
            intake.warnings.append(f"{heavy}; large data belongs in artifacts")
    return Normalised(
        value=value,
        speaks_contract=speaks and not _is_of_another_shape(payload, failed=failed),
        texts=(*texts, *_embedded_texts(blocks)),
        links=tuple(links),
        origins=tuple(intake.origins),
        blocks=intake.blocks,
        renamed=intake.renamed,
        refusals=tuple(intake.refusals),
        warnings=tuple(intake.warning_lines()),
    )


def flag_meta_data(value: dict[str, Any]) -> dict[str, Any]:
    """Return `value` with `meta_data_truncated` if its `meta_data` is too large for a model to read."""
    meta_data = value.get("meta_data")
    return value | {"meta_data_truncated": True} if meta_data and not is_small_meta_data(meta_data) else value


def parsed(text: str) -> Any:
    """Return the JSON object or array that `text` is, else None."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _block_fault(block: object) -> str | None:
    if not isinstance(block, dict):
        return "is not an object"
    match block.get("type"):
        case "text":
            return None if isinstance(block.get("text"), str) else "has no text"
        case "resource":
            return None if isinstance(block.get("resource"), dict) else "has no resource"
        case "image" | "audio" | "resource_link":
            return None
        case other:
            return f"has the unknown type {legible(str(other), 100)!r}"


def _payload(
    wire: Mapping[str, Any], blocks: Mapping[int, Mapping[str, Any]], warnings: list[str]
) -> tuple[Any, list[str]]:
    """Return a tool's payload, from the first place that has one, and its other texts."""
    structured = wire.get("structuredContent")
    texts = [_clean(block["text"]) for block in blocks.values() if block.get("type") == "text"]
    if structured is not None:
        others = [text for text in texts if not _says(text, structured)]
        if others and any(parsed(text) is not None for text in others):
            warnings.append(
                "structured_content and the data of a text block differ; structured_content is used"
            )
        return structured, others
    for position, text in enumerate(texts):
        found = parsed(text)
        if found is not None:
            return found, texts[:position] + texts[position + 1 :]
    spoken = [text for text in texts if text]
    return "\n".join(spoken) if spoken else None, []


def _says(text: str, payload: Any) -> bool:
    """Return whether `text` just repeats the payload, as FastMCP does for older clients."""
    inner = payload["result"] if isinstance(payload, dict) and payload.keys() == {"result"} else None
    if not text or text == inner:
        return True
    try:
        again = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return again in (payload, inner) if again is not None else inner is None


def lists_files(payload: object) -> bool:
    """Return whether a payload lists a file in the form of the contract, of any version.

    Other systems have `artifacts`, too: of builds, of registries. One item with content makes them files:
    otherwise a single bad item would let a model read the bytes of the others as data.
    """
    return isinstance(payload, dict) and any(
        _is_file(key, item, is_beside_results="results" in payload)
        for key in _FILE_KEYS
        if isinstance(payload.get(key), list)
        for item in payload[key]
    )


def _is_file(key: str, item: object, *, is_beside_results: bool) -> bool:
    """Return whether an item of a list is, or is meant to be, a file of the contract."""
    if not isinstance(item, dict):
        return isinstance(item, str) and key in _LEGACY
    is_named = isinstance(item.get("name"), str)
    match key:
        case "artifacts":
            if isinstance(item.get("b64"), str) or "s3_ref" in item or (is_named and "path" in item):
                return True
            return is_beside_results and is_named and item.keys() <= Artifact.model_fields.keys()
        case "deferred_artifacts":
            is_deferred = is_named and item.keys() <= DeferredArtifact.model_fields.keys()
            return is_deferred or (is_named and "path" in item) or "s3_ref" in item
        case _:
            return key == "returned_file_contents"


def _is_of_another_shape(payload: Mapping[str, Any], *, failed: bool) -> bool:
    """Return whether an envelope without files belongs to another system that only shares names with us.

    A contract value omits empty keys of ours. That loses nothing if all keys are ours and one of them has
    content; otherwise an empty key may be another system's. An error with only our keys is ours, and so is
    anything under a key for files: each item becomes a file, or an error that names it.
    """
    shaped = {key: payload[key] for key in _SHAPES if key in payload}
    filled = {key: item for key, item in shaped.items() if item not in (None, [], {})}
    has_others = not payload.keys() <= _KEYS
    if any(payload.get(key) for key in _FILE_KEYS) or (failed and not has_others):
        return False
    return (len(filled) < len(shaped) and (has_others or not filled)) or any(
        not isinstance(item, _SHAPES[key]) for key, item in shaped.items() if item is not None
    )


def _error_value(payload: Any, blocks: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    texts = [_clean(block["text"]) for block in blocks.values() if block.get("type") == "text"]
    message = "\n".join(text for text in texts if text)
    if not message and payload is not None:
        message = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
    return {"results": {"error": message or _UNSPOKEN}, "meta_data": {"is_error": True}}


def _marked(payload: dict[str, Any]) -> dict[str, Any]:
    meta_data = payload.get("meta_data", payload.get("meta-data"))
    return payload | {"meta_data": {**(meta_data if isinstance(meta_data, dict) else {}), "is_error": True}}


def _take_files(value: dict[str, Any], blocks: Mapping[int, Mapping[str, Any]], intake: Intake) -> None:
    """Move the files of a result from all places in `value` to `intake`."""
    for entry in _entries(value, "artifacts", intake.warnings):
        intake.artifact(entry)
    if not value.keys().isdisjoint(_LEGACY):
        legacy = {key: value.get(key) for key in _LEGACY}
        for key, items in legacy.items():
            if items and value.get("artifacts"):
                intake.warnings.append(f"{key} is ignored beside artifacts")
            elif items is not None and not isinstance(items, list):
                intake.warnings.append(f"{key} is not an array, ignored")
        if not value.get("artifacts"):
            intake.legacy(*legacy.values())
    for entry in _entries(value, "deferred_artifacts", intake.warnings):
        intake.defer(entry)
    for index, block in blocks.items():
        if block["type"] in _MEDIA or (block["type"] == "resource" and "blob" in block["resource"]):
            intake.block(index, block)
    for key in _FILE_KEYS:
        value.pop(key, None)


def _entries(value: Mapping[str, Any], key: str, warnings: list[str]) -> Sequence[Any]:
    """Return the items of a list of files; a lone value counts as a list."""
    items = value.get(key)
    if items and not isinstance(items, list):
        warnings.append(f"{key} is not an array, taken as one file")
        return [items]
    return items or ()


def _mend(value: dict[str, Any], intake: Intake, links: Sequence[Any]) -> dict[str, Any]:
    names_files = intake.artifacts or intake.deferred or intake.refusals or intake.incomplete
    if value.keys() == _BARE and not links and not names_files:
        # The keys that are repaired below are missing.
        return value
    if "results" not in value:
        name = _misspelled(value)
        intake.warnings.append(_MISSPELLED.format(name) if name else "the tool returned no `results`")
    repaired = {"results": value.pop("results", None)}
    meta_data = with_refusals(_meta_data(value, intake.warnings), intake.refusals)
    retryable = _retryable(value, meta_data, intake.warnings)
    if retryable is not None:
        meta_data["retryable"] = retryable
    found = {
        "meta_data": meta_data,
        "retryable": retryable,
        "artifacts": intake.artifacts,
        "deferred_artifacts": intake.deferred,
        "display": _display(value, intake),
        "canvas": _hints(value, "canvas", Canvas, intake.warnings),
        "links": _joined(value.pop("links", None), links),
        "incomplete": _joined(value.pop("incomplete", None), intake.incomplete),
    }
    value.pop("meta_data_truncated", None)
    repaired |= {key: item for key, item in found.items() if item not in (None, [], {})}
    return flag_meta_data({**repaired, **value})


def _meta_data(value: dict[str, Any], warnings: list[str]) -> dict[str, Any]:
    older = _object(value, "meta-data", warnings)
    meta_data = _object(value, "meta_data", warnings)
    if older is not None and meta_data is not None:
        warnings.append("both meta_data and meta-data are given; meta-data is ignored")
    return meta_data or older or {}


def _object(value: dict[str, Any], key: str, warnings: list[str]) -> dict[str, Any] | None:
    item = value.pop(key, None)
    if item is None or isinstance(item, dict):
        return item
    warnings.append(f"{key} is not an object, ignored")
    return None


def _retryable(value: dict[str, Any], meta_data: dict[str, Any], warnings: list[str]) -> bool | None:
    outer, inner = value.pop("retryable", None), meta_data.pop("retryable", None)
    for part in (outer, inner):
        if isinstance(part, bool):
            return part
        if part is not None:
            warnings.append("retryable is not a boolean, ignored")
    return None


def _display(value: dict[str, Any], intake: Intake) -> dict[str, Any] | None:
    display = _hints(value, "display", Display, intake.warnings)
    if display is None or not isinstance(display.get("primary_file"), str):
        return display
    primary = display["primary_file"]
    return display | {"primary_file": intake.renamed.get(primary, primary)}


def _hints(
    value: dict[str, Any], key: str, hints: type[BaseModel], warnings: list[str]
) -> dict[str, Any] | None:
    fields = _object(value, key, warnings)
    return None if fields is None else repaired(fields, hints, key, warnings)


def _misspelled(keys: Iterable[str]) -> str | None:
    """Return the key that was probably meant to be `results`."""
    near = (key for key in keys if 5 <= len(key) <= 9 and key[0] in "rR")
    alike = (key for key in near if likeness(key.lower(), "results") >= 0.8)
    return next(alike, None)


def is_small_meta_data(meta_data: object) -> bool:
    """Return whether facts are small enough for a model to read: at most `META_DATA_MAX_BYTES` of JSON."""
    return len(json.dumps(meta_data, ensure_ascii=False).encode()) <= META_DATA_MAX_BYTES


def _joined(before: Any, added: Sequence[Any]) -> list[Any]:
    """Return the tool's own list under a key of ours, with ours added; a lone value counts as a list."""
    listed = before if isinstance(before, list) else [] if before is None else [before]
    if not added:
        return listed
    # Compared as text: comparing many items pairwise takes minutes.
    known = {json.dumps(item, sort_keys=True) for item in listed}
    return [*listed, *(item for item in added if json.dumps(item, sort_keys=True) not in known)]


def _embedded_texts(blocks: Mapping[int, Mapping[str, Any]]) -> list[str]:
    found = []
    for block in blocks.values():
        resource = block["resource"] if block["type"] == "resource" else {}
        if isinstance(resource.get("text"), str):
            found.append(_clean(f"{resource.get('uri')}\n{resource['text']}"))
    return found


def _clean(text: str) -> str:
    return text if text.isascii() else legible(text, len(text))
