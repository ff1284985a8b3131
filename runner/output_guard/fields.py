"""Layer 4: fields that are known to hold files, by configuration for each tool.

A path is tried at the result itself, below `result`, `structuredContent` and `content`, inside each block of
a list, and inside the JSON text of a text block.

Source: document 004, section 3.4; requirements S4-28 to S4-34; rules X3 and X4 of the conformance cases.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from runner.formats.base64 import decode_any
from runner.formats.magic import identify
from runner.formats.mime import DEFAULT_MIME
from runner.output_guard.artifact_field import ArtifactField
from runner.output_guard.config import MAX_ELEMENTS, MAX_PARSE_CHARS, GuardConfig
from runner.output_guard.encoded import data_url
from runner.output_guard.json_view import json_text, thawed, view
from runner.output_guard.oversize import size_of
from runner.output_guard.references import file_name, large_text, reference, summary
from runner.output_guard.selectors import ValueSlot, find, parse
from runner.output_guard.storing import Find, LayerRun

__all__ = ["extract_fields"]

_WRAPPERS = ("result", "structuredContent", "content")
_MIME_OF = {"pdf": "application/pdf", "text": "text/plain", "json": "application/json"}


def extract_fields(
    value: Any, fields: Iterable[ArtifactField], config: GuardConfig, warnings: list[str]
) -> LayerRun[Any]:
    """Return `value` without the files in `fields`; other values stay, with a warning."""
    box = [thawed(value)]
    for spec in fields:
        for root in list(_roots(box)):
            yield from _extract(root, spec, config, warnings)
        for place in list(_json_texts(box)):
            yield from _extract_in_text(place, spec, config, warnings)
    return box[0]


def _extract(root: Any, spec: ArtifactField, config: GuardConfig, warnings: list[str]) -> LayerRun[bool]:
    changed = False
    for place in find(root, parse(spec.field_path)):
        held = place.value
        if not _may_hold(held, spec, config):
            continue
        content = _content(held, spec)
        if content is None:
            warnings.append(f"field {spec.field_path} holds no base64, left as it is")
            continue
        payload = _payload(place, root)
        kind = (
            identify(content, probe_bytes=config.binary_detection.max_decode_bytes)
            if isinstance(content, bytes)
            else None
        )
        mime = spec.mime_type or (kind.mime if kind else _MIME_OF.get(spec.content_type, DEFAULT_MIME))
        name = file_name(payload, str(place.key), mime, kind.name if kind else "")
        found = Find(content=content, mime=mime, name=name, where=spec.field_path)
        stored = yield found
        text = summary(spec.summary_template, found, stored, spec.content_type, payload)
        if spec.only_large and isinstance(content, str):
            # Removed only for its size: the replacement shows its beginning and end.
            place.put(large_text(found, stored, text, held, content))
        else:
            place.put(reference(found, stored, text))
        changed = True
    return changed


def _may_hold(held: Any, spec: ArtifactField, config: GuardConfig) -> bool:
    """Return whether a value is of the kind of a field, and has to be removed."""
    if not isinstance(held, dict | list if spec.holds == "json" else str | bytes) or not held:
        return False
    if not spec.only_large:
        return True
    size = size_of(held, config.max_inline_size) if spec.holds == "json" else len(held)
    return config.auto_artifact_large_content and size > config.max_inline_size


def _extract_in_text(
    place: ValueSlot, spec: ArtifactField, config: GuardConfig, warnings: list[str]
) -> LayerRun[None]:
    text = place.value
    if text.lstrip()[:1] not in ("{", "[") or len(text) > MAX_PARSE_CHARS:
        return
    try:
        parsed = view(json.loads(text), max_elements=MAX_ELEMENTS).value
    except (ValueError, RecursionError):
        return
    box = [thawed(parsed)]
    changed = False
    for root in list(_roots(box)):
        changed = (yield from _extract(root, spec, config, warnings)) or changed
    if changed:
        place.put(json_text(box[0]))


def _content(held: Any, spec: ArtifactField) -> bytes | str | None:
    if spec.holds == "json":
        return json_text(held)
    if spec.holds == "text" or isinstance(held, bytes):
        return held  # type: ignore[no-any-return]
    return decode_any(data_url(held) or held)


def _payload(place: ValueSlot, root: Any) -> Mapping[str, Any]:
    """Return the fields beside a field, then those of the whole result; never the field itself."""
    outer = root if isinstance(root, dict) else {}
    beside = place.container if isinstance(place.container, dict) else {}
    return {key: item for key, item in {**outer, **beside}.items() if item is not place.value}


def _roots(box: list[Any]) -> Iterator[Any]:
    # A path applied to a list is applied to its items, so lists of blocks need no extra path.
    value = box[0]
    yield value
    if isinstance(value, dict):
        yield from (value[key] for key in _WRAPPERS if isinstance(value.get(key), dict | list))


def _json_texts(box: list[Any]) -> Iterator[ValueSlot]:
    value = box[0]
    if isinstance(value, str):
        yield ValueSlot(box, 0)
    blocks = value.get("content") if isinstance(value, dict) else value
    for block in blocks if isinstance(blocks, list) else ():
        if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
            yield ValueSlot(block, "text")
