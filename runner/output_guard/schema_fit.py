"""What is left of a guarded value where a schema says what it has to look like.

Clients refuse a result whose structured content does not satisfy the schema that its tool declares. A
reference is an object, so it cannot stand where the schema wants text or a list. There the text says what
was taken out and where it is, and a list keeps as many of its first items as are short. What cannot be
made to fit is left out; the reference in the result's content says where all of it is.

Source: MCP specification 2025-11-25, tools, "Output Schema".
"""

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import cache
from typing import Any

from jsonschema.validators import extend, validator_for
from referencing import Registry

__all__ = ["fitted", "satisfies", "shortened"]

_TEXT_CHARS = 400
_ITEMS_CHARS = 4_000
# A schema is a stranger's, and is followed here, where everybody waits for it: so far, and no farther.
# A unit is a step, an item that a step looks at, or what takes as long.
_MOST_UNITS = 10_000
_MOST_UNIQUE = 100
# Regular expressions may take exponential time, and those of `unevaluated…` are searched out of sight. A
# reference by name has the whole schema searched each time. The others hold lists of any length in lists.
_NEVER_FOLLOWED = frozenset(
    {
        *("pattern", "patternProperties", "unevaluatedItems", "unevaluatedProperties"),
        *("$dynamicRef", "$recursiveRef", "dependencies", "dependentRequired"),
    }
)
# They look at each item, whatever they have it satisfy.
_OF_ITEMS = frozenset({"items", "prefixItems", "additionalItems", "additionalProperties"}) | {
    *("contains", "propertyNames")
}
_COMPARES = frozenset({"const", "enum", "uniqueItems"})
_QUICK_PER_UNIT = 8
_CHARS_PER_UNIT = 64
_UNITS_PER_SEARCHED = 4
_left: ContextVar[int] = ContextVar("units left")
_root: ContextVar[Any] = ContextVar("whole schema")


def fitted(was: Any, guarded: Any, schema: Mapping[str, Any]) -> Any:
    """Return `guarded` so that it satisfies `schema`, or None if nothing of it does.

    Args:
        was: The value before it was guarded, which satisfied the schema.
        guarded: What the guard made of it; parts that it left alone are the same objects.
        schema: The JSON schema of the value.
    """
    for made in (guarded, _reworded(was, guarded), shortened(was, [])):
        if satisfies(made, schema):
            return made
    return None


def satisfies(value: Any, schema: Mapping[str, Any]) -> bool:
    """Say whether a value is an object that satisfies a schema; one that cannot be checked, any does.

    Nothing is fetched or read for it, no regular expression is tried, and what takes too many steps does not
    satisfy it.
    """
    if not isinstance(value, dict):
        return False
    try:
        _left.set(_MOST_UNITS)
        _root.set(schema)
        checked: bool = _bounded(validator_for(schema))(schema, registry=Registry()).is_valid(value)
    except _TooMuch:
        return False
    except Exception:  # noqa: BLE001 - of a schema that is none, whatever its validator meets in it
        # Then the client cannot check it either.
        return True
    return checked


class _TooMuch(Exception):
    """To follow a schema would take longer than it may."""


@cache
def _bounded(kind: Any) -> Any:
    """Return a class of validators that takes no more steps than are left, and makes no others.

    What is behind a reference, or says that it is of another dialect, is followed by this class too: else it
    would be followed without bound.
    """
    bounded = extend(
        kind, {keyword: _counted(keyword, follow) for keyword, follow in kind.VALIDATORS.items()}
    )
    fields = [field for field in bounded.__attrs_attrs__ if field.init]

    def evolve(validator: Any, **changes: Any) -> Any:
        return bounded(**{**{field.alias: getattr(validator, field.name) for field in fields}, **changes})

    bounded.evolve = evolve
    return bounded


def _counted(keyword: str, follow: Callable[..., Iterable[Any] | None]) -> Callable[..., Any]:
    def step(validator: Any, said: Any, instance: Any, schema: Any) -> Any:
        _spend(1 + len(said) // _QUICK_PER_UNIT if isinstance(said, list | dict) else 1)
        if keyword in _NEVER_FOLLOWED:
            raise _TooMuch
        if keyword in _OF_ITEMS and isinstance(instance, list | dict):
            _spend(len(instance))
        if keyword == "additionalProperties" and "patternProperties" in schema:
            raise _TooMuch
        if keyword == "$ref" and not str(said).startswith("#/") and said != "#":
            # All of the schema is searched for it.
            _search(_root.get())
        if keyword in _COMPARES:
            _compare(instance if keyword == "uniqueItems" else said, is_unique=keyword == "uniqueItems")
        for error in follow(validator, said, instance, schema) or ():
            # It holds what is wrong, written out.
            _spend(len(error.message) // _CHARS_PER_UNIT)
            yield error

    return step


def _spend(units: int) -> None:
    left = _left.get() - units
    _left.set(left)
    if left < 0:
        raise _TooMuch


def _search(root: Any) -> None:
    """Spend what it takes to look at each value of a schema once."""
    left = [root]
    while left:
        value = left.pop()
        if isinstance(value, list | dict):
            _spend(_UNITS_PER_SEARCHED * (1 + len(value)))
            left.extend(value.values() if isinstance(value, dict) else value)


def _compare(items: Any, *, is_unique: bool) -> None:
    """Refuse to compare what may hold any number of values, or each of too many items with each other."""
    listed = items if isinstance(items, list) else [items]
    if (is_unique and len(listed) > _MOST_UNIQUE) or any(isinstance(item, list | dict) for item in listed):
        raise _TooMuch


def _reworded(was: Any, guarded: Any) -> Any:
    """Return `guarded` with references in the form of what they stand for."""
    if guarded is was:
        return was
    if isinstance(was, str):
        return guarded if isinstance(guarded, str) else _said(guarded)
    if isinstance(was, dict) and isinstance(guarded, dict) and guarded.keys() == was.keys():
        return {key: _reworded(was[key], guarded[key]) for key in was}
    if isinstance(was, list) and isinstance(guarded, list) and len(guarded) == len(was):
        return [_reworded(old, new) for old, new in zip(was, guarded, strict=True)]
    notes = [_said(guarded)] if isinstance(guarded, dict) else []
    return shortened(was, notes)


def shortened(
    was: Any, notes: list[str], *, text_chars: int = _TEXT_CHARS, items_chars: int = _ITEMS_CHARS
) -> Any:
    """Return a value of the same form as `was` in which nothing is long.

    Args:
        was: The value.
        notes: What stands in the place of a long text, if anything; only the first is used.
        text_chars: The longest text that stays.
        items_chars: About how long the items of a list that stay are together.
    """
    if isinstance(was, str):
        if len(was) <= text_chars:
            return was
        return notes[0] if notes else f"[{len(was)} characters removed, see content]"
    if isinstance(was, dict):
        return {
            key: shortened(item, notes, text_chars=text_chars, items_chars=items_chars)
            for key, item in was.items()
        }
    if not isinstance(was, list):
        return was
    kept: list[Any] = []
    room = items_chars
    for item in was:
        short = shortened(item, notes, text_chars=text_chars, items_chars=items_chars)
        room -= len(str(short))
        if room < 0:
            break
        kept.append(short)
    return kept


def _said(reference: Any) -> str:
    if not isinstance(reference, Mapping) or "summary" not in reference:
        return "[removed, see content]"
    how = f"; {reference['read']}" if "read" in reference else ""
    return f"[{reference['summary']}{how}]"
