"""The JSON types that a JSON Schema allows, and those that a value has.

Source: JSON Schema 2020-12, core 8 and 10, validation 6.1. Only keywords that name types or values are read;
the tool's own validation enforces the others.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

__all__ = ["types_of_schema", "types_of_value"]

_ALL = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
# A reference may be circular.
_MOST_PARTS = 1000
_DEEPEST = 50


def types_of_schema(schema: Any, root: Any) -> frozenset[str]:
    """Return the JSON types that a schema allows; all types if it does not restrict them or is too large.

    Args:
        schema: The schema.
        root: The document that its references point into.
    """
    return _allowed(schema, root, [_MOST_PARTS], _DEEPEST)


def types_of_value(value: Any) -> frozenset[str]:
    """Return the JSON types of a value: a whole number is an integer, too."""
    match value:
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"integer", "number"} if value.is_integer() else {"number"})
        case str():
            return frozenset({"string"})
        case list():
            return frozenset({"array"})
        case dict():
            return frozenset({"object"})
        case _:
            return frozenset({"null"})


def _allowed(part: Any, root: Any, left: list[int], depth: int) -> frozenset[str]:
    if part is False:
        return frozenset()
    left[0] -= 1
    if not isinstance(part, Mapping) or left[0] < 0 or not depth:
        return _ALL
    types, kind = _ALL, part.get("type")
    if isinstance(kind, str):
        types = _named([kind])
    elif isinstance(kind, list):
        types = _named(kind[:_MOST_PARTS])
    if isinstance(part.get("$ref"), str):
        types &= _allowed(_at(root, part["$ref"]), root, left, depth - 1)
    values = [part["const"]] if "const" in part else part.get("enum")
    if isinstance(values, list) and len(values) <= _MOST_PARTS:
        types &= frozenset().union(*map(types_of_value, values))
    for word in ("anyOf", "oneOf", "allOf"):
        choices = part.get(word)
        if isinstance(choices, list) and choices and len(choices) <= _MOST_PARTS:
            each = [_allowed(choice, root, left, depth - 1) for choice in choices]
            types &= _ALL.intersection(*each) if word == "allOf" else frozenset().union(*each)
    return types


def _named(names: list[Any]) -> frozenset[str]:
    """Return the types with these names; `number` includes `integer`."""
    found = {name for name in names if isinstance(name, str)}
    return _ALL & (found | {"integer"} if "number" in found else found)


def _at(root: Any, reference: str) -> Any:
    """Return the place in a document that a reference within it names; None if there is no such place."""
    path, place = reference.removeprefix("#"), root
    if path == reference or (path and not path.startswith("/")):
        return None
    for step in path.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(place, Mapping):
            place = place.get(name)
        elif isinstance(place, list) and name.isdecimal() and int(name[:9]) < len(place):
            place = place[int(name[:9])]
        else:
            return None
    return place
