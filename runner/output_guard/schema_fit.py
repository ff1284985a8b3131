"""Structured content that still satisfies the output schema of its tool after it was guarded.

    for made in fits(was, guarded, schema): ...

Clients refuse a result whose structured content does not satisfy the schema. A reference is an object, so it
is invalid where the schema requires text or a list. There the text names the artifact, a list keeps its first
items, and a map its first keys: as many as fit, and at least as many as the schema requires.

Only changed parts are validated: the others satisfied the schema before. Regular expressions are matched by
RE2, in linear time. The number of validation steps is bounded.

Source: MCP specification 2025-11-25, tools, "Output Schema"; JSON Schema 2020-12, sections 10 and 11.
"""

import contextlib
import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import re2
from jsonschema.validators import extend, validator_for
from referencing import Registry

from runner.output_guard.encoded import cut as cut_text
from runner.output_guard.references import in_words

__all__ = ["fits", "left_out", "satisfies", "shortened"]

_TEXT_CHARS = 400
_ITEMS_CHARS = 4_000
# Approximate maximum length of a list or a map, from the first attempt to the last.
_ROOMS = (_ITEMS_CHARS, 1_000, 200, 0)
# Length of the prefix of a text that stays if nothing else satisfies the schema.
_PREFIXES = (_TEXT_CHARS, 200, 100, 50, 20, 0)
# A schema is untrusted: its evaluation is bounded. A unit is a step, an item that a step examines, or work
# that takes as long.
_MOST_UNITS = 10_000
_MOST_UNIQUE = 100
_MOST_REFERENCES = 50
_MOST_PATTERN_CHARS = 2_000
_PATTERN_MEMORY = 1024 * 1024
# The cost of `unevaluated…` cannot be counted. A reference by name searches the whole schema each time. The
# others contain nested lists of any length.
_NEVER_FOLLOWED = frozenset(
    {
        *("patternProperties", "unevaluatedItems", "unevaluatedProperties"),
        *("$dynamicRef", "$recursiveRef", "dependencies", "dependentRequired"),
    }
)
# They examine each item, regardless of its schema.
_OF_ITEMS = frozenset({"items", "prefixItems", "additionalItems", "additionalProperties"}) | {
    *("contains", "propertyNames")
}
_COMPARES = frozenset({"const", "enum", "uniqueItems"})
_QUICK_PER_UNIT = 8
_CHARS_PER_UNIT = 64
_UNITS_PER_SEARCHED = 4
# Evaluated by `_judged` itself, which knows the changed parts.
_APPLIED_HERE = frozenset(
    {
        *("$ref", "allOf", "anyOf", "oneOf", "properties", "patternProperties", "additionalProperties"),
        *("items", "prefixItems", "additionalItems", "$defs", "definitions"),
    }
)
_OF_TEXT = ("type", "minLength", "maxLength", "pattern", "enum", "const")
_ADDRESS = re.compile(r"artifact://[\w-]+")
# Whether they hold may depend on each part of a value.
_CONDITIONS = ("if", "anyOf", "not", "contains", "dependentSchemas")
_ADDRESSES = frozenset({"uri", "iri", "uri-reference", "iri-reference", "url"})
# Formats that a text of ours cannot have, and that clients check.
_FORMATS = frozenset(
    {
        *("date", "date-time", "time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4"),
        *("ipv6", "uuid", "uri-template", "json-pointer", "relative-json-pointer", "regex", "byte"),
    }
)
_left: ContextVar[int] = ContextVar("units left")
_root: ContextVar[Any] = ContextVar("validator of the whole schema")
_MISSING: Any = object()
"""Marker for no value: there was none before, or none satisfies the schema."""
_CUT: Any = object()
"""Marker for a guarded value within a part that was removed as a whole."""


def fits(
    was: Any, guarded: Any, schema: Mapping[str, Any], *, is_satisfied: bool = True
) -> Iterator[dict[str, Any]]:
    """Yield forms of `guarded` that satisfy `schema`, the longest first.

    Args:
        was: The value before it was guarded.
        guarded: The guarded value; its unchanged parts are identical objects in `was`.
        schema: The JSON schema of the value.
        is_satisfied: Whether `was` satisfies the schema, so that its parts need not be validated.
    """
    before = was if is_satisfied else _MISSING
    if satisfies(guarded, schema, was=before):
        yield guarded
    for room in _ROOMS:
        try:
            _begin(schema, units=10 * _MOST_UNITS)
            made = _made(was, guarded, [schema], _Cut(room=room, note=_reworded(guarded)))
        except Exception:  # noqa: BLE001 - of a schema that is not one, or that takes too long
            made = shortened(was, items_chars=room)
        if satisfies(made, schema, was=before):
            yield made


def satisfies(value: Any, schema: Mapping[str, Any], *, was: Any = _MISSING) -> bool:
    """Return whether a value is an object that satisfies a schema; any does if the schema cannot be checked.

    Nothing is fetched or read for it, and no expression takes more than linear time. A value that takes too
    many steps does not satisfy the schema.

    Args:
        value: The value.
        schema: The JSON schema.
        was: A value that satisfies the schema. Parts of it in `value` are not validated.
    """
    if not isinstance(value, dict):
        return False
    try:
        _begin(schema, units=_MOST_UNITS)
        return _judged(value, was, schema)
    except (_TooMuch, RecursionError):
        return False
    except Exception:  # noqa: BLE001 - of a schema that is not one, whatever its validator finds in it
        # Then the client cannot check it either.
        return True


def shortened(was: Any, *, text_chars: int = _TEXT_CHARS, items_chars: int = _ITEMS_CHARS) -> Any:
    """Return `was` with long texts and lists shortened; no key of an object is left out.

    Args:
        was: The value.
        text_chars: The longest text that stays.
        items_chars: Approximate total length of the items of a list that stay.
    """
    return _made(was, _CUT, None, _Cut(room=items_chars, note="", text_chars=text_chars))


def left_out(was: Any, made: Any, *, most: int) -> dict[str, dict[str, int]]:
    """Return the number of members kept, and of those there were, for lists and objects with fewer in `made`.

    Args:
        was: The value.
        made: A shortened form of it; its unchanged parts are identical objects in `was`.
        most: Most entries of the answer, whose keys are JSON Pointers.

    Source: RFC 6901.
    """
    found: dict[str, dict[str, int]] = {}
    left = [("", was, made)]
    while left and len(found) < most:
        path, old, new = left.pop()
        # A name may be as long as a message.
        if old is new or type(old) is not type(new) or not isinstance(old, dict | list) or len(path) > 500:
            continue
        if len(new) < len(old):
            found[path] = {"kept": len(new), "of": len(old)}
        for key, item in new.items() if isinstance(new, dict) else enumerate(new):
            before = old.get(key) if isinstance(old, dict) else old[key] if key < len(old) else None
            left.append((f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}", before, item))
    return found


class _TooMuch(Exception):
    """Evaluating the schema exceeds the bound."""


class _NoExpression(_TooMuch):
    """A regular expression cannot be matched in linear time."""


def _begin(schema: Any, *, units: int) -> None:
    _left.set(units)
    _root.set(_bounded(validator_for(schema))(schema, registry=Registry()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """Strategy for shortening a value.

    Attributes:
        room: Approximate total length of the items of a list or a map.
        note: Text in place of removed content.
        text_chars: The longest text that stays.
    """

    room: int
    note: str
    text_chars: int = _TEXT_CHARS


def _made(was: Any, guarded: Any, schemas: list[Any] | None, cut: _Cut) -> Any:
    """Return `was` in a form as short as `guarded`, or `_MISSING` if its schemas allow none.

    Args:
        was: The value before it was guarded.
        guarded: The guarded value; `_CUT` within a part that was removed as a whole.
        schemas: The schemas that apply to it; None for none: no key of an object is left out then.
        cut: How it is cut.
    """
    if guarded is was:
        return was
    applied = None if schemas is None else [each for schema in schemas for each in _applied(was, schema)]
    if isinstance(was, str):
        return _text_made(was, guarded, applied or (), cut)
    if isinstance(was, list):
        least = max([_count(each, "minItems") for each in applied or ()], default=0)
        is_alike = isinstance(guarded, list) and len(guarded) == len(was)
        inner = cut if is_alike or guarded is _CUT else replace(cut, note=_reworded(guarded))
        items: list[Any] = []
        room = cut.room
        for index, item in enumerate(was):
            below = None if applied is None else [s for each in applied for s in _of_index(index, each)]
            new = _made(item, guarded[index] if is_alike else _CUT, below, inner)
            room -= 0 if is_alike else len(str(new)) + 2
            if new is _MISSING or (room < 0 and len(items) >= least):
                break
            items.append(new)
        if len(items) < least:
            return _MISSING
        return was if len(items) == len(was) and all(map(operator.is_, items, was)) else items
    if not isinstance(was, dict):
        return was
    least = max([_count(each, "minProperties") for each in applied or ()], default=0)
    required = {key for each in applied or () for key in each.get("required", ())}
    declared = {key for each in applied or () for key in each.get("properties", ())}
    is_alike = isinstance(guarded, dict) and guarded.keys() == was.keys()
    inner = cut if is_alike or guarded is _CUT else replace(cut, note=_reworded(guarded))
    made: dict[str, Any] = {}
    room = cut.room
    for key, item in was.items():
        is_needed = key in required or len(made) < least
        is_free = is_alike or is_needed or applied is None or key in declared
        if not is_free and room < 0:
            continue
        below = None if applied is None else [s for each in applied for s in _schemas_of(key, each)]
        new = _made(item, guarded[key] if is_alike else _CUT, below, inner)
        room -= 0 if is_free else len(key) + len(str(new)) + 6
        if new is _MISSING and key in required:
            return _MISSING
        if new is not _MISSING and (is_free or room >= 0):
            made[key] = new
    return was if len(made) == len(was) and all(made[key] is was[key] for key in was) else made


def _text_made(was: str, guarded: Any, applied: Iterable[Mapping[str, Any]], cut: _Cut) -> Any:
    if guarded is _CUT and len(was) <= cut.text_chars:
        return was
    note = _reworded(guarded) or cut.note or f"[{len(was)} characters removed, see content]"
    address = _ADDRESS.search(note)
    formats = {each.get("format") for each in applied if isinstance(each.get("format"), str)}
    if formats & _FORMATS:
        words = []
    elif formats & _ADDRESSES:
        words = [address[0]] if address else []
    else:
        least = max([_count(each, "minLength") for each in applied], default=0)
        starts = [cut_text(was, length) for length in (*_PREFIXES, least)]
        words = [note, *([address[0]] if address else []), *starts]
    leaves = [{key: each[key] for key in _OF_TEXT if key in each} for each in applied]
    for word in words:
        with contextlib.suppress(_NoExpression):
            if all(_checked(word, leaf) for leaf in leaves):
                return word
    return _MISSING


def _reworded(guarded: Any) -> str:
    """Return the text in place of removed content; empty if the guarded value has no such text."""
    return guarded if isinstance(guarded, str) else in_words(guarded) or ""


def _count(schema: Mapping[str, Any], key: str) -> int:
    limit = schema.get(key, 0)
    return int(limit) if isinstance(limit, int | float) else 0


def _applied(was: Any, schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and its subschemas that apply to the value itself."""
    if isinstance(schema, dict):
        yield schema
        for each in _branches(was, schema):
            if each.is_certain:
                yield from _applied(was, each.schema)


def _schemas_of(key: str, schema: Mapping[str, Any]) -> list[Any]:
    try:
        return list(_of_key(key, schema))
    except _NoExpression:
        return []


def _judged(value: Any, was: Any, schema: Any) -> bool:
    """Return whether a value satisfies a schema that `was` satisfies, checking only their differences."""
    if value is was or (isinstance(value, str | int | float) and type(value) is type(was) and value == was):
        return True
    if was is _MISSING or type(value) is not type(was) or not isinstance(schema, dict):
        return _checked(value, schema)
    _spend(1 + len(schema))
    for branch in _branches(was, schema):
        if not (_judged(value, was, branch.schema) if branch.is_certain else _checked(value, branch.schema)):
            return False
    # A value may satisfy only one branch.
    alternatives = schema.get("oneOf", ())
    if sum(_may_satisfy(value, each) for each in alternatives) > 1 and not _checked(
        value, {"oneOf": alternatives}
    ):
        return False
    rest = {key: value for key, value in schema.items() if key not in _APPLIED_HERE}
    changed = list(_changed(value, was, schema))
    is_larger = (
        value.keys() - was.keys()
        if isinstance(value, dict)
        else isinstance(value, list) and value[len(was) :]
    )
    if not is_larger and schema.keys().isdisjoint(_CONDITIONS):
        # Keys that were evaluated before still are.
        rest = {key: rule_value for key, rule_value in rest.items() if not key.startswith("unevaluated")}
    if isinstance(value, list) and rest.pop("uniqueItems", False) and changed:
        _spend(len(value))
        if len({json.dumps(item, sort_keys=True) for item in value}) < len(value):
            return False
    return all(_judged(new, old, each) for new, old, below in changed for each in below) and _checked(
        value, rest
    )


def _changed(value: Any, was: Any, schema: Mapping[str, Any]) -> Iterator[tuple[Any, Any, Iterable[Any]]]:
    """Yield the changed items: the new one, the old one, and the schemas of both."""
    if isinstance(value, dict):
        for key, item in value.items():
            old = was.get(key, _MISSING)
            if item is not old:
                yield item, old, _of_key(key, schema)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            old = was[index] if index < len(was) else _MISSING
            if item is not old:
                yield item, old, _of_index(index, schema)


@dataclass(frozen=True, slots=True)
class _Branch:
    """A subschema for the same value; certain if the original value satisfied it."""

    schema: Any
    is_certain: bool


def _branches(was: Any, schema: Mapping[str, Any]) -> Iterator[_Branch]:
    """Yield the subschemas of a schema that apply to the value itself."""
    if "$ref" in schema:
        target = _referenced(schema["$ref"])
        yield _Branch({"$ref": schema["$ref"]} if target is None else target, target is not None)
    for each in schema.get("allOf", ()):
        yield _Branch(each, is_certain=True)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            possible = [each for each in schema[key] if _may_satisfy(was, each)]
            is_one = len(possible) == 1
            yield _Branch(possible[0] if is_one else {key: schema[key]}, is_certain=is_one)


def _referenced(name: Any) -> Any:
    if not isinstance(name, str) or (name != "#" and not name.startswith("#/")):
        return None
    found = _root.get().schema
    for step in name.split("/")[1:]:
        _spend(1)
        step = step.replace("~1", "/").replace("~0", "~")
        found = found[int(step)] if isinstance(found, list) else found[step]
    return found


def _may_satisfy(value: Any, schema: Any, depth: int = 0) -> bool:
    """Return whether a value may satisfy a schema, by a quick look at its type, keys and constants."""
    _spend(1)
    if not isinstance(schema, dict):
        return schema is not False
    if "$ref" in schema and depth < _MOST_REFERENCES:
        target = _referenced(schema["$ref"])
        if target is not None and not _may_satisfy(value, target, depth + 1):
            return False
    # Without a validator, whose error messages contain the value.
    named = schema.get("type", [])
    types = [named] if isinstance(named, str) else named
    if types and not any(_root.get().is_type(value, each) for each in types):
        return False
    if not isinstance(value, dict | list):
        return _may_equal(value, schema)
    if not isinstance(value, dict):
        return True
    inner = schema.get("properties", {})
    _spend((len(value) + len(inner)) // _QUICK_PER_UNIT)
    is_closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    if not set(schema.get("required", ())) <= value.keys() or (
        is_closed and not value.keys() <= inner.keys()
    ):
        return False
    return all(_may_equal(value[key], each) for key, each in inner.items() if key in value)


def _may_equal(value: Any, schema: Any) -> bool:
    if not isinstance(schema, dict) or isinstance(value, dict | list):
        return True
    allowed = [schema["const"]] if "const" in schema else schema.get("enum", [value])
    _spend(len(allowed) // _QUICK_PER_UNIT)
    return value in allowed


def _of_key(key: str, schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the schemas of a property."""
    named = schema.get("properties", {})
    patterns = [
        each for pattern, each in schema.get("patternProperties", {}).items() if _matches(pattern, key)
    ]
    if key in named:
        yield named[key]
    yield from patterns
    if key not in named and not patterns and "additionalProperties" in schema:
        yield schema["additionalProperties"]


def _of_index(index: int, schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the schemas of an item of a list, in either spelling of tuples."""
    items, first = schema.get("items", True), schema.get("prefixItems", [])
    if isinstance(items, list):
        first, items = items, schema.get("additionalItems", True)
    yield first[index] if index < len(first) else items


def _matches(pattern: str, text: str) -> bool:
    _spend(1 + (len(pattern) + len(text)) // _CHARS_PER_UNIT)
    if len(pattern) > _MOST_PATTERN_CHARS:
        raise _NoExpression
    try:
        return re2.compile(pattern, _options()).search(text) is not None
    except re2.error as error:
        # RE2 refuses expressions that need more than linear time, such as those with lookahead.
        raise _NoExpression from error


@cache
def _options() -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_MEMORY
    return options


def _checked(value: Any, schema: Any) -> bool:
    """Return whether a value as a whole satisfies a schema."""
    if schema in (True, {}):
        return True
    return not any(True for _ in _root.get().evolve(schema=schema).iter_errors(value))


@cache
def _bounded(kind: Any) -> Any:
    """Return a class of validators whose steps are bounded, as are those of the validators it creates.

    References, and parts in another dialect, are evaluated by this class too: otherwise they would not be
    bounded.
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
    def step(validator: Any, argument: Any, instance: Any, schema: Any) -> Any:
        _spend(1 + len(argument) // _QUICK_PER_UNIT if isinstance(argument, list | dict) else 1)
        if keyword in _NEVER_FOLLOWED:
            raise _TooMuch
        if keyword == "pattern":
            # Never by `re`, whose time may be exponential.
            if isinstance(instance, str) and not _matches(argument, instance):
                yield from validator.descend(instance, schema=False)
            return
        if keyword in _OF_ITEMS and isinstance(instance, list | dict):
            _spend(len(instance))
        if keyword == "additionalProperties" and "patternProperties" in schema:
            raise _TooMuch
        if keyword == "$ref" and not str(argument).startswith("#/") and argument != "#":
            # The whole schema is searched for it.
            _search(_root.get().schema)
        if keyword in _COMPARES:
            _compare(instance if keyword == "uniqueItems" else argument, is_unique=keyword == "uniqueItems")
        for error in follow(validator, argument, instance, schema) or ():
            # Its message contains the invalid value.
            _spend(len(error.message) // _CHARS_PER_UNIT)
            yield error

    return step


def _spend(units: int) -> None:
    left = _left.get() - units
    _left.set(left)
    if left < 0:
        raise _TooMuch


def _search(root: Any) -> None:
    """Spend the units for visiting each value of a schema once."""
    left = [root]
    while left:
        value = left.pop()
        if isinstance(value, list | dict):
            _spend(_UNITS_PER_SEARCHED * (1 + len(value)))
            left.extend(value.values() if isinstance(value, dict) else value)


def _compare(items: Any, *, is_unique: bool) -> None:
    """Refuse to compare lists and objects, or too many items pairwise."""
    listed = items if isinstance(items, list) else [items]
    if (is_unique and len(listed) > _MOST_UNIQUE) or any(isinstance(item, list | dict) for item in listed):
        raise _TooMuch
