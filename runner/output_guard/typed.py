"""Layer 2: content blocks that declare what they hold, wherever in a result they stand.

The bytes of images, audio and embedded resources are taken out whatever their size; the block stays where it
was, with a reference. Links and embedded text stay as they are.

Source: document 004, section 3.3; requirements S4-6 to S4-11 and S4-24 to S4-27; contradiction C32.
"""

from typing import Any

from runner.formats.base64 import canonical, without_header
from runner.formats.base64 import decode as decode_canonical
from runner.formats.magic import identify
from runner.formats.mime import DEFAULT_MIME, is_mime
from runner.output_guard.references import file_name, reference, summary
from runner.output_guard.storing import Find, LayerRun

__all__ = ["extract_blocks"]


def extract_blocks(value: Any, template: str, warnings: list[str], where: str = "") -> LayerRun[Any]:
    """Return `value` with the bytes of its content blocks taken out."""
    if isinstance(value, list):
        items = []
        for index, item in enumerate(value):
            nested = isinstance(item, dict | list)
            items.append(
                (yield from extract_blocks(item, template, warnings, f"{where}[{index}]")) if nested else item
            )
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    replaced = yield from _block(value, template, warnings, where)
    if replaced is not None:
        return replaced
    made = {}
    for key, item in value.items():
        place = f"{where}.{key}" if where else key
        nested = isinstance(item, dict | list)
        made[key] = (yield from extract_blocks(item, template, warnings, place)) if nested else item
    return made if any(made[key] is not value[key] for key in value) else value


def _block(
    block: dict[str, Any], template: str, warnings: list[str], where: str
) -> LayerRun[dict[str, Any] | None]:
    match block.get("type"):
        case "image" | "audio" as kind:
            return (yield from _media(block, kind, template, warnings, where))
        case "resource" if isinstance(block.get("resource"), dict):
            return (yield from _embedded(block, template, warnings, where))
        case _:
            return None


def _media(
    block: dict[str, Any], kind: str, template: str, warnings: list[str], where: str
) -> LayerRun[dict[str, Any] | None]:
    content = _bytes(block.get("data"))
    declared = block.get("mimeType")
    detected = identify(content) if content is not None else None
    if content is None or (detected is None and not isinstance(declared, str)):
        # Without a MIME type and known bytes it is an object of the tool that only looks like a block.
        if isinstance(declared, str) and isinstance(block.get("data"), str):
            warnings.append(
                f"{where or 'result'}: the data of a block of type {kind} is not base64, left as it is"
            )
        return None
    mime = (
        declared
        if isinstance(declared, str) and is_mime(declared)
        else detected.mime
        if detected
        else DEFAULT_MIME
    )
    name = file_name(block, kind, mime, detected.name if detected else "")
    found = Find(content=content, mime=mime, name=name, where=where or kind)
    stored = yield found
    rest = {key: item for key, item in block.items() if key != "data"}
    return rest | reference(found, stored, summary(template, found, stored, kind, rest))


def _embedded(
    block: dict[str, Any], template: str, warnings: list[str], where: str
) -> LayerRun[dict[str, Any] | None]:
    resource = block["resource"]
    content = _bytes(resource.get("blob"))
    if content is None:
        if isinstance(resource.get("blob"), str):
            warnings.append(f"{where or 'result'}: the blob of a resource is not base64, left as it is")
        return None
    declared, uri = resource.get("mimeType"), resource.get("uri")
    detected = identify(content)
    mime = (
        declared
        if isinstance(declared, str) and is_mime(declared)
        else detected.mime
        if detected
        else DEFAULT_MIME
    )
    named = {"name": _last_segment(uri)} if isinstance(uri, str) else {}
    name = file_name(named, "resource", mime, detected.name if detected else "")
    found = Find(content=content, mime=mime, name=name, where=where or "resource")
    stored = yield found
    rest = {key: item for key, item in block.items() if key != "resource"}
    rest |= {key: item for key, item in resource.items() if key != "blob"}
    return rest | reference(found, stored, summary(template, found, stored, "resource", rest))


def _bytes(data: object) -> bytes | None:
    if isinstance(data, bytes):
        return data
    text = without_header(data)
    body = canonical(text) if text else None
    if body is not None or not isinstance(text, str):
        return None if body is None else decode_canonical(body)
    # Base64 that was cut in the middle of a group: still no text, if a known format begins so.
    clipped = canonical(text[: len(text) // 4 * 4])
    content = None if clipped is None else decode_canonical(clipped)
    return content if content is not None and identify(content) is not None else None


def _last_segment(uri: str) -> str:
    return uri.partition("#")[0].partition("?")[0].rstrip("/").rpartition("/")[2]
