"""Layer 2: content blocks that declare their content, anywhere in a result.

The bytes of images, audio and embedded resources are removed regardless of size; the block stays in place,
with a reference. Links and embedded text stay unchanged.

Source: document 004, section 3.3; requirements S4-6 to S4-11 and S4-24 to S4-27; contradiction C32.
"""

import sys
from typing import Any

from runner.contract.jsonable import mapping_of, without
from runner.formats.base64 import decode_any, without_header
from runner.formats.filenames import name_in_uri
from runner.formats.magic import identify
from runner.formats.mime import DEFAULT_MIME, is_mime
from runner.output_guard.references import file_name, reference, summary
from runner.output_guard.storing import Find, LayerRun, rebuilt

__all__ = ["extract_blocks"]


def extract_blocks(value: Any, template: str, warnings: list[str], where: str = "") -> LayerRun[Any]:
    """Return `value` without the bytes of its content blocks."""
    replaced = (yield from _block(value, template, warnings, where)) if isinstance(value, dict) else None
    if replaced is not None:
        return replaced
    if not isinstance(value, dict | list):
        return value
    return (
        yield from rebuilt(
            value,
            lambda item, place: extract_blocks(item, template, warnings, place),
            where,
            least=sys.maxsize,
        )
    )


def _block(
    block: dict[str, Any], template: str, warnings: list[str], where: str
) -> LayerRun[dict[str, Any] | None]:
    kind, resource = block.get("type"), block.get("resource")
    is_media = kind in ("image", "audio")
    if not isinstance(kind, str) or not (is_media or (kind == "resource" and isinstance(resource, dict))):
        return None
    holder, key = (block, "data") if is_media else (mapping_of(resource), "blob")
    content, declared = _bytes(holder.get(key)), holder.get("mimeType")
    detected = None if content is None else identify(content)
    is_declared = isinstance(declared, str) or not is_media
    if content is None or (detected is None and not is_declared):
        # Without a MIME type or a known format, it is an object of the tool that only looks like a block.
        if is_declared and isinstance(holder.get(key), str):
            place = where or "result"
            warnings.append(f"{place}: the {key} of a block of type {kind} is not base64, left as it is")
        return None
    mime = str(declared) if is_mime(declared) else detected.mime if detected else DEFAULT_MIME
    named = block if is_media else {"name": name_in_uri(holder.get("uri"))}
    name = file_name(named, kind, mime, detected.name if detected else "")
    found = Find(content=content, mime=mime, name=name, where=where or kind)
    stored = yield found
    rest = ({} if is_media else without(block, "resource")) | without(holder, key)
    return rest | reference(found, stored, summary(template, found, stored, kind, rest))


def _bytes(data: object) -> bytes | None:
    if isinstance(data, bytes):
        return data
    text = without_header(data)
    if not isinstance(text, str) or not text:
        return None
    content = decode_any(text)
    if content is not None:
        return content
    # Base64 that was cut within a group: still not a text, if it begins like a known format.
    clipped = decode_any(text[: len(text) // 4 * 4])
    return clipped if clipped is not None and identify(clipped) is not None else None
