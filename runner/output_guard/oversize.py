"""Layer 0: long strings, and large structures of short ones, are stored and described.

Long strings go first. If the whole is still too long, what takes most of it goes: as little of the structure
as will do, so that what is small stays readable where it stood. What is said in place of a long text is put
together in `runner.output_guard.references`, from what `runner.formats.content_shape` sees in it.

Source: document 004, section 3.1; requirements S4-13 to S4-16, S4-45, S4-57; rule X6 of the
conformance cases.
"""

from typing import Any

from runner.formats.json_size import least_chars
from runner.output_guard.encoded import cut
from runner.output_guard.json_view import raw_json, text_of
from runner.output_guard.references import large_text
from runner.output_guard.storing import Find, LayerRun

__all__ = ["fit", "inline", "raw_reference", "size_of"]

# What a reference takes, generously.
_REFERENCE_CHARS = 1_600
_PREVIEW_CHARS = 2_000
# Above this a lower bound of a size will do.
_EXACT_BELOW = 500_000


def inline(value: Any, limit: int, where: str = "") -> LayerRun[Any]:
    """Return `value` with the strings above `limit` characters stored."""
    match value:
        case str() if len(value) > limit:
            return (yield from _text(value, limit, where))
        case dict():
            made = {}
            for key, item in value.items():
                name = key if len(key) <= limit else (yield from _key(key, limit, where))
                place = f"{where}.{key[:60]}" if where else key[:60]
                made[name] = (yield from inline(item, limit, place)) if _may_be_long(item, limit) else item
            return made if any(made.get(key) is not item for key, item in value.items()) else value
        case list():
            items = []
            for index, item in enumerate(value):
                long = _may_be_long(item, limit)
                items.append((yield from inline(item, limit, f"{where}[{index}]")) if long else item)
            return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
        case _:
            return value


def fit(value: Any, budget: int, where: str = "") -> LayerRun[Any]:
    """Return `value` with what takes most of it stored, so that its text fits into `budget` characters.

    What cannot be made to fit is stored as a whole.
    """
    if size_of(value, budget) <= budget:
        return value
    if isinstance(value, str) or not isinstance(value, dict | list) or budget < 2 * _REFERENCE_CHARS:
        return (yield from _whole(value, where))
    weights = {key: least_chars(item, _EXACT_BELOW) for key, item in _items(value)}
    heaviest = max(weights, key=weights.__getitem__)
    total = size_of(value, _EXACT_BELOW)
    rest = total - size_of(value[heaviest], _EXACT_BELOW)
    place = f"{where}.{str(heaviest)[:60]}" if isinstance(value, dict) else f"{where}[{heaviest}]"
    if rest + 2 * _REFERENCE_CHARS <= budget:
        made = value.copy()
        made[heaviest] = yield from fit(value[heaviest], budget - rest, place.lstrip("."))
        return made
    if isinstance(value, dict):
        return (yield from _lightened(value, sorted(weights, key=weights.__getitem__), total - budget, where))
    return (yield from _whole(value, where))


def raw_reference(value: Any, where: str = "") -> LayerRun[Any]:
    """Store any structure at all, unparsed, and return its reference."""
    content = raw_json(value)
    find = Find(content=content, mime="application/json", name="tool-output.json", where=where)
    stored = yield find
    summary = f"Large structure stored as artifact ({len(content)} bytes)"
    text = content[:_PREVIEW_CHARS].decode("utf-8", "ignore") + content[-_PREVIEW_CHARS:].decode(
        "utf-8", "ignore"
    )
    shape = value if isinstance(value, dict | list) else ""
    return large_text(find, stored, summary, shape, text)


def size_of(value: Any, exact_below: int) -> int:
    """Return the length of the text of `value` in characters; a lower bound above `exact_below`."""
    bound = least_chars(value, exact_below)
    return bound if bound > exact_below else len(text_of(value))


def _items(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list) else []


def _may_be_long(item: Any, limit: int) -> bool:
    return len(item) > limit if isinstance(item, str) else isinstance(item, dict | list)


def _text(text: str, limit: int, where: str) -> LayerRun[Any]:
    find = Find(content=text, mime="text/plain", name="tool-output.txt", where=where)
    stored = yield find
    if stored.record is None and text[:1] not in ("{", "["):
        short = cut(text, limit)
        gone = f"{len(text) - len(short)} of {len(text)} characters"
        return f"{short}\n[truncated: {gone} removed and not kept]"
    return large_text(find, stored, f"Large text stored as artifact ({len(text)} chars)", text, text)


def _key(key: str, limit: int, where: str) -> LayerRun[str]:
    find = Find(content=key, mime="text/plain", name="tool-output.txt", where=where)
    stored = yield find
    place = f"artifact {stored.record.id}" if stored.record else "not kept"
    return f"{cut(key, min(limit, 200))}... [truncated: name of {len(key)} characters, {place}]"


def _whole(value: Any, where: str) -> LayerRun[Any]:
    if not isinstance(value, str):
        return (yield from raw_reference(value, where))
    find = Find(content=value, mime="text/plain", name="tool-output.txt", where=where)
    stored = yield find
    return large_text(find, stored, f"Large text stored as artifact ({len(value)} chars)", value, value)


def _lightened(value: dict[str, Any], by_weight: list[str], excess: int, where: str) -> LayerRun[Any]:
    """Store the heaviest items of an object, one by one, until it has `excess` characters less."""
    heavy: list[str] = []
    while excess > 0:
        # What is long may be the names, too.
        key = by_weight.pop() if by_weight else None
        size = 0 if key is None else size_of(value[key], _EXACT_BELOW)
        if key is None or size <= 2 * _REFERENCE_CHARS:
            return (yield from _whole(value, where))
        excess -= size - _REFERENCE_CHARS
        heavy.append(key)
    made = dict(value)
    for key in heavy:
        made[key] = yield from _whole(value[key], f"{where}.{key[:60]}".lstrip("."))
    return made
