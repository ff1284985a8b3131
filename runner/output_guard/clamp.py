"""The last guardrail: whatever an observation is, what the model reads of it is never longer than the limit.

With a store the whole observation is kept and referenced. Without one it is shortened, and says so.

Source: document 004, section 4.1 step 6; requirements S4-46, S4-90, S4-91, S4-107; rule CL1 of the
conformance cases.
"""

from collections.abc import Iterator
from typing import Any

from pydantic_core import from_json

from runner.output_guard.encoded import cut
from runner.output_guard.json_view import beginning_of, json_text
from runner.output_guard.oversize import put_away, size_of
from runner.output_guard.storing import Keeper, drive

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
    name, where = ("tool-output", "") if unruly else ("observation", "observation")
    made = await drive(put_away(value, where, name=name), keeper, chars=chars)
    method = "artifact" if len(keeper.stored) > before else "truncate"
    if method == "truncate" and not unruly:
        # Where nothing else is left of it, the model gets as much as fits.
        made["preview"] = beginning_of(value, limit)
    event = {"type": "observation_clamped", "method": method, "tool": keeper.tool, "max_chars": limit}
    return _within(made, limit), event


def _within(made: dict[str, Any], limit: int) -> Any:
    """Return a reference within `limit`: first without what is least needed, at last only its word."""
    for smaller in _smaller(made):
        room = limit - len(json_text(smaller | {"preview": ""}))
        if room < 0:
            continue
        # With the quote before it; an escape that is cut off is left out.
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
