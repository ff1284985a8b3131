"""Size limits: long strings, large structures of short ones, and last the whole observation.

Long strings are stored first. If the whole is still too long, its largest parts are stored: no more than
necessary, so that small parts stay readable in place. `runner.output_guard.references` makes the replacement
of a long text, from its shape by `runner.formats.content_shape`.

The clamp is the last guardrail: the text of an observation for a model is never longer than the limit. With a
store the whole observation is kept and referenced. Without one it is shortened, with a mark.

Source: document 004, sections 3.1 and 4.1 step 6; requirements S4-13 to S4-16, S4-45, S4-46, S4-57, S4-90,
S4-91, S4-107; rules CL1 and X6 of the conformance cases.
"""

from collections.abc import Iterator
from typing import Any

from pydantic_core import from_json

from runner.formats.json_walks import least_chars
from runner.output_guard.encoded import cut
from runner.output_guard.json_view import beginning_of, json_text, raw_json, text_of
from runner.output_guard.references import large_text
from runner.output_guard.storing import Find, Keeper, LayerRun, drive, rebuilt

__all__ = ["clamped_by", "fit", "inline", "put_away", "size_of"]

# Generous length of a reference.
_REFERENCE_CHARS = 1_600
_PREVIEW_CHARS = 2_000
# Above this, a lower bound of a size is enough.
_EXACT_BELOW = 500_000
_SMALLEST = '{"truncated": true}'


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
    """Return `value` with its largest parts stored, so that its text fits into `budget` characters.

    If no such form fits, it is stored as a whole.
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
        value: The text or structure.
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
        # Only its beginning and end: the whole would be in memory twice.
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
        # The keys may be the long part, too.
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


async def clamped_by(
    keeper: Keeper, value: Any, limit: int, *, chars: int, unruly: bool = False
) -> tuple[Any, dict[str, Any] | None]:
    """Return `value` within `limit` characters and the event, if it had to be clamped.

    Args:
        keeper: Stores removed content.
        value: A plain value; any value at all if `unruly`.
        limit: Limit in characters of its text.
        chars: Characters to process.
        unruly: Whether it could not be examined, so that it is stored unparsed.
    """
    if not unruly and size_of(value, limit) <= limit:
        return value, None
    before = len(keeper.stored)
    name, where = ("tool-output", "") if unruly else ("observation", "observation")
    made = await drive(put_away(value, where, name=name), keeper, chars=chars)
    method = "artifact" if len(keeper.stored) > before else "truncate"
    if method == "truncate" and not unruly:
        # If nothing else is left of it, the model gets as much as fits.
        made["preview"] = beginning_of(value, limit)
    event = {"type": "observation_clamped", "method": method, "tool": keeper.tool, "max_chars": limit}
    return _within(made, limit), event


def _within(made: dict[str, Any], limit: int) -> Any:
    """Return a reference within `limit`: the least important keys are removed first."""
    for smaller in _smaller(made):
        room = limit - len(json_text(smaller | {"preview": ""}))
        if room < 0:
            continue
        # With the quote before it; a truncated escape is left out.
        beginning = json_text(smaller["preview"][:room])[: room + 1]
        fitting = from_json(beginning, allow_partial="trailing-strings")
        return smaller | {"preview": cut(smaller["preview"], len(fitting))}
    return {"truncated": True} if limit >= len(_SMALLEST) else "truncated"[:limit]


def _smaller(made: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if len(made["preview"]) <= 1000:
        yield made
    without = {key: item for key, item in made.items() if key not in ("tail", "shape")}
    yield without
    yield {key: item for key, item in without.items() if key != "read"}
    yield {"summary": made["summary"][:200], "preview": "", "truncated": True, **_bare(made)}
    yield {"summary": "truncated", "preview": "", **_bare(made)}


def _bare(made: dict[str, Any]) -> dict[str, Any]:
    return {"artifact": {"id": made["artifact"]["id"]}} if "artifact" in made else {}
