"""Layer 0: long strings, and large structures of short ones, are stored and described.

Long strings go first. If the whole is still too long, what takes most of it goes: as little of the structure
as will do, so that what is small stays readable where it stood. What is said in place of a long text is put
together in `runner.output_guard.references`, from what `runner.formats.content_shape` sees in it.

Source: document 004, section 3.1; requirements S4-13 to S4-16, S4-45, S4-57; rule X6 of the
conformance cases.
"""

from typing import Any

from runner.formats.json_walks import least_chars
from runner.output_guard.encoded import cut
from runner.output_guard.json_view import raw_json, text_of
from runner.output_guard.references import large_text
from runner.output_guard.storing import Find, LayerRun, rebuilt

__all__ = ["fit", "inline", "put_away", "size_of"]

# What a reference takes, generously.
_REFERENCE_CHARS = 1_600
_PREVIEW_CHARS = 2_000
# Above this a lower bound of a size will do.
_EXACT_BELOW = 500_000


def inline(value: Any, limit: int, where: str = "") -> LayerRun[Any]:
    """Return `value` with the strings above `limit` characters stored."""
    if isinstance(value, str):
        return (yield from _text(value, limit, where)) if len(value) > limit else value
    if not isinstance(value, dict | list):
        return value
    return (
        yield from rebuilt(
            value,
            lambda item, place: inline(item, limit, place),
            where,
            least=limit + 1,
            rename=lambda key, place: _key(key, limit, place),
        )
    )


def fit(value: Any, budget: int, where: str = "") -> LayerRun[Any]:
    """Return `value` with what takes most of it stored, so that its text fits into `budget` characters.

    What cannot be made to fit is stored as a whole.
    """
    if size_of(value, budget) <= budget:
        return value
    if isinstance(value, str) or not isinstance(value, dict | list) or budget < 2 * _REFERENCE_CHARS:
        return (yield from put_away(value, where))
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
    return (yield from put_away(value, where))


def put_away(
    value: Any, where: str = "", *, name: str = "tool-output", is_json: bool = False
) -> LayerRun[dict[str, Any]]:
    """Store a text, or any other structure as unparsed JSON, and return its reference.

    Args:
        value: What is stored.
        where: Its place.
        name: Name of its file, without the ending.
        is_json: Whether a text is JSON.
    """
    content: str | bytes
    if isinstance(value, str):
        content = text = value
        what = f"{'JSON' if is_json else 'text'} stored as artifact ({len(value)} chars)"
    else:
        content, is_json = raw_json(value), True
        # The ends alone: all of it would be in memory twice.
        ends = content[:_PREVIEW_CHARS] + content[-_PREVIEW_CHARS:]
        text = ends.decode("utf-8", "ignore")
        what = f"structure stored as artifact ({len(content)} bytes)"
    mime, ending = ("application/json", "json") if is_json else ("text/plain", "txt")
    find = Find(content=content, mime=mime, name=f"{name}.{ending}", where=where)
    stored = yield find
    shape = value if isinstance(value, str | dict | list) else ""
    return large_text(find, stored, f"Large {what}", shape, text)


def size_of(value: Any, exact_below: int) -> int:
    """Return the length of the text of `value` in characters; a lower bound above `exact_below`."""
    bound = least_chars(value, exact_below)
    return bound if bound > exact_below else len(text_of(value))


def _items(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list) else []


def _text(text: str, limit: int, where: str) -> LayerRun[Any]:
    made = yield from put_away(text, where)
    if "artifact" in made or text[:1] in ("{", "["):
        return made
    short = cut(text, limit)
    return f"{short}\n[truncated: {len(text) - len(short)} of {len(text)} characters removed and not kept]"


def _key(key: str, limit: int, where: str) -> LayerRun[str]:
    made = yield from put_away(key, where)
    place = f"artifact {made['artifact']['id']}" if "artifact" in made else "not kept"
    return f"{cut(key, min(limit, 200))}... [truncated: name of {len(key)} characters, {place}]"


def _lightened(value: dict[str, Any], by_weight: list[str], excess: int, where: str) -> LayerRun[Any]:
    """Store the heaviest items of an object, one by one, until it has `excess` characters less."""
    heavy: list[str] = []
    while excess > 0:
        # What is long may be the names, too.
        key = by_weight.pop() if by_weight else None
        size = 0 if key is None else size_of(value[key], _EXACT_BELOW)
        if key is None or size <= 2 * _REFERENCE_CHARS:
            return (yield from put_away(value, where))
        excess -= size - _REFERENCE_CHARS
        heavy.append(key)
    made = dict(value)
    for key in heavy:
        made[key] = yield from put_away(value[key], f"{where}.{key[:60]}".lstrip("."))
    return made
