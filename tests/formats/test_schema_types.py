"""The JSON types that a schema allows."""

import pytest

from runner.formats.schema_types import types_of_schema, types_of_value

EVERY = {"null", "boolean", "integer", "number", "string", "array", "object"}
ROOT = {
    "$defs": {
        "Point": {"type": "object"},
        "Kind": {"enum": ["a", "b"]},
        "Again": {"$ref": "#/$defs/Again"},
        "a/b": {"type": "array"},
        "Tree": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/Tree"}]},
    },
    "definitions": {"Old": {"type": "boolean"}},
}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "integer"}, {"integer"}),
        ({"type": "number"}, {"integer", "number"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"$ref": "#/$defs/Point"}, {"object"}),
        ({"$ref": "#/$defs/a~1b"}, {"array"}),
        ({"$ref": "#/definitions/Old"}, {"boolean"}),
        ({"$ref": "#/$defs/Kind", "description": "beside it"}, {"string"}),
        ({"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]}, {"object", "null"}),
        ({"oneOf": [{"type": "array"}, {"const": 1}]}, {"array", "integer", "number"}),
        ({"allOf": [{"$ref": "#/$defs/Point"}, {"minProperties": 1}]}, {"object"}),
        ({"allOf": [{"type": ["integer", "null"]}, {"type": "number"}]}, {"integer"}),
        ({"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"object"}),
        ({"const": None}, {"null"}),
        ({"enum": [1.5, True]}, {"number", "boolean"}),
        ({}, EVERY),
        (None, EVERY),
        ({"$ref": "#/$defs/Missing"}, EVERY),
        ({"$ref": "https://example.com/schema"}, EVERY),
        ({"$ref": "#/$defs/Again"}, EVERY),
        ({"$ref": "#/$defs/Tree"}, EVERY),
        ({"enum": list(range(2000))}, EVERY),
        (False, set()),
    ],
)
def test_types_of_a_schema_follow_its_keywords(schema: object, expected: set[str]) -> None:
    assert types_of_schema(schema, ROOT) == expected


def test_types_of_a_value_are_those_of_json() -> None:
    values: list[object] = [None, True, 2, 2.0, 2.5, "2", [], {}]

    assert [sorted(types_of_value(value)) for value in values] == [
        ["null"],
        ["boolean"],
        ["integer", "number"],
        ["integer", "number"],
        ["number"],
        ["string"],
        ["array"],
        ["object"],
    ]
