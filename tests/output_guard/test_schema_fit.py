"""Structured content of every shape that a guarded result has still satisfies the schema of its tool.

Source: MCP specification 2025-11-25, tools, "Output Schema".
"""

import json
from typing import Any

import jsonschema
import pytest
from guard_shelf import Shelf, guarded
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runner.output_guard.schema_fit import fits, left_out, satisfies

LONG = "words " * 4_000
AHEAD = r"^(?=A)[A-Z]+-[0-9]+$"
ROW = {"type": "object", "properties": {"key": {"type": "string", "pattern": AHEAD}}, "required": ["key"]}
ROWS = [{"key": f"ABC-{n}", "text": "u" * 60} for n in range(2_000)]


def of(item: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": item}, "required": ["x"], **more}


def shorter(value: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return the first form that satisfies the schema, by the validator of clients."""
    jsonschema.validate(value, schema)
    made = guarded(value, store=Shelf()).value
    fit = next(fits(value, made, schema), None)
    if fit is not None:
        jsonschema.validate(fit, schema)
    return fit


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (of({"type": "array", "items": ROW}), {"x": ROWS}),
        (of({"type": "array", "items": {"$ref": "#/$defs/row"}}, **{"$defs": {"row": ROW}}), {"x": ROWS}),
        (of({"anyOf": [{"type": "array", "items": ROW}, {"type": "null"}]}), {"x": ROWS}),
        (of({"oneOf": [{"type": "string"}, {"type": "array", "items": ROW}]}), {"x": ROWS}),
        (of({"type": "array", "items": ROW, "minItems": 30}), {"x": ROWS}),
        (of({"type": "array", "uniqueItems": True}), {"x": [f"item {n}" for n in range(20_000)]}),
        (of({"type": "string", "minLength": 5_000}), {"x": LONG}),
        (of({"type": "string", "pattern": "^[a-z ]+$"}), {"x": LONG}),
        (
            of({"type": "string", "maxLength": 30_000}, patternProperties={"^S_": {"type": "integer"}}),
            {"x": LONG, "S_1": 1},
        ),
        (of({"type": "string", "format": "uri"}), {"x": "https://example.com/?" + "q" * 20_000}),
        (of({"type": "string"}, properties={"n": {"enum": ["a", "b"]}, "x": {}}), {"n": "a", "x": LONG}),
        (
            {"type": "object", "additionalProperties": {"type": "number"}},
            {f"T{n}": n / 2 for n in range(5_000)},
        ),
        (
            {"type": "object", "minProperties": 40, "patternProperties": {AHEAD: {"type": "integer"}}},
            {f"A-{n}": n for n in range(5_000)},
        ),
        (of({"type": "string"}, unevaluatedProperties=False), {"x": LONG}),
    ],
)
def test_shortened_content_satisfies_its_schema(schema: dict[str, Any], value: dict[str, Any]) -> None:
    fit = shorter(value, schema)

    assert fit is not None
    assert len(json.dumps(fit)) < 15_000


@pytest.mark.parametrize(
    "item",
    [
        {"type": "string", "minLength": 20_000, "pattern": "^[a-z ]+$"},
        {"type": "string", "pattern": "^(words ){4000}$"},
        {"type": "string", "const": LONG},
    ],
)
def test_content_without_a_shorter_form_has_no_fit(item: dict[str, Any]) -> None:
    fit = shorter({"x": LONG}, of(item))

    assert fit is None or len(fit["x"]) >= 20_000


def test_left_out_members_are_counted_by_pointer() -> None:
    same = [1, 2, 3]
    was = {"a/b": {"rows": [*range(9)], "map": {"x": 1, "y": 2}}, "same": same, "text": LONG, "gone": 1}
    made = {"a/b": {"rows": [0, 1], "map": {"x": 1}}, "same": same, "text": "cut"}

    assert left_out(was, made, most=9) == {
        "": {"kept": 3, "of": 4},
        "/a~1b/rows": {"kept": 2, "of": 9},
        "/a~1b/map": {"kept": 1, "of": 2},
    }
    assert len(left_out(was, made, most=2)) == 2
    assert left_out(was, was, most=9) == {}


def test_changed_parts_are_judged() -> None:
    schema = of({"type": "array", "items": ROW})
    was = {"x": [{"key": "A-1"}, {"key": "A-2"}]}

    assert satisfies({"x": [was["x"][0], {"key": "A-2", "more": 1}]}, schema, was=was)
    assert not satisfies({"x": [was["x"][0], {"key": 2}]}, schema, was=was)
    assert not satisfies({"x": [was["x"][0], {}]}, schema, was=was)
    assert not satisfies({}, schema, was=was)


def test_a_value_that_becomes_another_alternative_fails() -> None:
    schema = of({"oneOf": [{"type": "array", "minItems": 2}, {"type": "array", "maxItems": 3}]})
    was = {"x": [1, 2, 3, 4]}

    assert satisfies({"x": [1]}, schema, was=was)
    assert not satisfies({"x": [1, 2]}, schema, was=was)


# A schema, and a value that satisfies it; texts by a letter, so that a failure is legible.
_WORDS = {"A": "a", "B": "b b", "L": LONG, "X": "x" * 12_000}
_TEXTS = st.sampled_from([*_WORDS])
_LEAVES = st.one_of(
    _TEXTS.map(lambda text: ({"type": "string"}, text)),
    _TEXTS.map(lambda text: ({"type": "string", "minLength": min(len(_WORDS[text]), 700)}, text)),
    _TEXTS.map(lambda text: ({"type": "string", "pattern": "^[a-z]"}, text)),
    _TEXTS.map(lambda text: ({"anyOf": [{"type": "string"}, {"type": "null"}]}, text)),
    st.integers(-9, 9).map(lambda number: ({"type": "integer", "minimum": -9}, number)),
)


def _list_of(pair: tuple[Any, Any], count: int, least: int) -> tuple[Any, Any]:
    return {"type": "array", "items": pair[0], "minItems": min(count, least)}, [pair[1]] * count


def _map_of(pair: tuple[Any, Any], count: int, least: int) -> tuple[Any, Any]:
    schema = {"type": "object", "additionalProperties": pair[0], "minProperties": min(count, least)}
    return schema, {f"key {n}": pair[1] for n in range(count)}


def _object_of(pairs: dict[str, tuple[Any, Any]], needed: bool) -> tuple[Any, Any]:
    schema = {
        "type": "object",
        "properties": {key: each[0] for key, each in pairs.items()},
        "required": [*pairs] if needed else [],
        "additionalProperties": False,
    }
    return schema, {key: each[1] for key, each in pairs.items()}


_COUNTS = st.sampled_from([0, 1, 3, 40])
_PAIRS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.builds(_list_of, inner, _COUNTS, st.integers(0, 3)),
        st.builds(_map_of, inner, _COUNTS, st.integers(0, 3)),
        st.builds(_object_of, st.dictionaries(st.sampled_from("abc"), inner, max_size=3), st.booleans()),
        inner.map(lambda pair: ({"oneOf": [{"type": "boolean"}, pair[0]]}, pair[1])),
    ),
    max_leaves=4,
)


def _written_out(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _written_out(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_written_out(item) for item in value]
    return _WORDS.get(value, value) if isinstance(value, str) else value


@settings(max_examples=40, deadline=None)
@given(_PAIRS)
# All of it is in the names.
@example(_list_of(_map_of(({"type": "string"}, "X"), 40, 0), 3, 0))
def test_any_content_satisfies_its_schema_when_shortened(pair: tuple[Any, Any]) -> None:
    fit = shorter({"x": _written_out(pair[1])}, of(pair[0]))

    assert fit is not None
