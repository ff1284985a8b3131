import re
from pathlib import Path

import pytest

from runner.cli.arguments import ParsedArguments, coerce, parse_arguments
from runner.errors import UsageError


def test_words_are_sorted_by_their_sign() -> None:
    parsed = parse_arguments(
        ["name=a=b", "count:=3", "filename=@/x/sales.csv", "filenames=@a", "filenames=@b", "empty="],
        '{"count": 1, "deep": {"a": [1]}}',
    )

    assert parsed == ParsedArguments(
        texts={"name": "a=b", "empty": ""},
        values={"count": 3, "deep": {"a": [1]}},
        files={"filename": (Path("/x/sales.csv"),), "filenames": (Path("a"), Path("b"))},
    )


@pytest.mark.parametrize(
    ("words", "args", "sentence"),
    [
        (["alone"], None, "'alone' is not an argument; write name=value, name:=json or name=@path"),
        (["a:={"], None, "a: '{' is not JSON"),
        ([], "[1]", "--args: '[1]' is not a JSON object: arguments must be one JSON object"),
        ([], '{"a": b}', "--args: '{\"a\": b}' is not a JSON object: Expecting value"),
        (["a:=[NaN]"], None, "a: '[NaN]' is not JSON: NaN is not a JSON value"),
        (["a:=1e999"], None, "a: '1e999' is not JSON: 1e999 is out of range"),
        ([], '{"a": -Infinity}', "is not a JSON object: -Infinity is not a JSON value"),
        ([], '{"a": 1e999}', "is not a JSON object: 1e999 is out of range"),
    ],
)
def test_malformed_argument_is_refused_in_one_sentence(
    words: list[str], args: str | None, sentence: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        parse_arguments(words, args)


def test_arguments_that_were_cut_off_are_read_as_far_as_they_go() -> None:
    parsed = parse_arguments([], '{"filename": "report.pdf", "pages": [1, 2')

    assert parsed.values == {"filename": "report.pdf", "pages": [1, 2]}


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("3", {"type": "integer"}, 3),
        ("3", {"type": "string"}, "3"),
        ("3", {}, "3"),
        ("3", {"type": "number"}, 3),
        ("3.5", {"type": "number"}, 3.5),
        ("3.5", {"type": "integer"}, "3.5"),
        ("true", {"type": "boolean"}, True),
        ("True", {"type": "boolean"}, True),
        ("yes", {"type": "boolean"}, "yes"),
        ("[1]", {"type": "array"}, [1]),
        ('{"a": 1}', {"type": "object"}, {"a": 1}),
        ("null", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, None),
        ("5", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 5),
        ("5", {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "5"),
        ("2", {"enum": [1, 2]}, 2),
        ('{"x": 1}', {"$ref": "#/$defs/Point"}, {"x": 1}),
        ('{"x": 1}', {"anyOf": [{"allOf": [{"$ref": "#/$defs/Point"}]}, {"type": "null"}]}, {"x": 1}),
        ("many", {"type": "integer"}, "many"),
        ("true", {"type": "integer"}, "true"),
        ("1e999", {"type": "number"}, "1e999"),
    ],
)
def test_a_word_is_read_by_the_schema_of_its_parameter(
    text: str, schema: dict[str, object], value: object
) -> None:
    read = coerce(text, schema, {"$defs": {"Point": {"type": "object"}}})

    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("text", ["NaN", "-inf", "Infinity"])
def test_nan_and_infinity_are_refused_for_a_number(text: str) -> None:
    as_text = coerce(text, {"type": "string"}, {})

    assert as_text == text
    with pytest.raises(UsageError, match="is not a JSON number; give a finite number, or null"):
        coerce(text, {"type": "number"}, {})
