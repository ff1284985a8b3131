"""The last guardrail: whatever an observation is, what the model reads of it is never longer than the limit.

With a store the whole observation is kept and referenced. Without one it is shortened, and says so.

Source: document 004, section 4.1 step 6; requirements S4-46, S4-90, S4-91, S4-107; rule CL1 of the
conformance cases.
"""

from collections.abc import Iterator
from typing import Any

from runner.output_guard.encoded import cut
from runner.output_guard.json_view import json_text, raw_json
from runner.output_guard.oversize import raw_reference, size_of
from runner.output_guard.references import large_text
from runner.output_guard.storing import Find, Keeper, LayerRun, drive

__all__ = ["clamped_by"]

_SMALLEST = '{"truncated": true}'


async def clamped_by(
    keeper: Keeper, value: Any, limit: int, *, chars: int, unruly: bool = False
) -> tuple[Any, dict[str, Any] | None]:
    """Return `value` within `limit` characters and the event, if it had to be clamped.

    Args:
        keeper: Keeps what is taken out.
        value: A plain value; any value at all if `unruly`.
        limit: In characters of its text.
        chars: How much there is of it to look at.
        unruly: It could not be looked into, so it is stored unparsed.
    """
    if not unruly and size_of(value, limit) <= limit:
        return value, None
    before = len(keeper.stored)
    layer = raw_reference(value) if unruly else _reference(value)
    made = await drive(layer, keeper, chars=chars)
    method = "artifact" if len(keeper.stored) > before else "truncate"
    event = {"type": "observation_clamped", "method": method, "tool": keeper.tool, "max_chars": limit}
    return _within(made, limit), event


def _reference(value: Any) -> LayerRun[dict[str, Any]]:
    whole = isinstance(value, str)
    content = value if whole else raw_json(value)
    mime, ending = ("text/plain", "txt") if whole else ("application/json", "json")
    find = Find(content=content, mime=mime, name=f"observation.{ending}", where="observation")
    stored = yield find
    # Where nothing else is left of it, the model gets as much as fits.
    text = content if isinstance(content, str) else content.decode()
    summary = f"Observation of {len(text)} characters stored as artifact"
    return large_text(find, stored, summary, value, text) | ({} if stored.record else {"preview": text})


def _within(made: dict[str, Any], limit: int) -> Any:
    """Return a reference within `limit`: first without what is least needed, at last only its word."""
    for smaller in _smaller(made):
        room = limit - len(json_text(smaller | {"preview": ""}))
        if room < 0:
            continue
        return smaller | {"preview": _cut(smaller["preview"], room)}
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


def _cut(text: str, room: int) -> str:
    """Return the beginning of `text` that takes at most `room` characters when written as JSON."""
    low, high = 0, min(len(text), room)
    while low < high:
        middle = (low + high + 1) // 2
        if len(json_text(text[:middle])) - 2 <= room:
            low = middle
        else:
            high = middle - 1
    return cut(text, low)
