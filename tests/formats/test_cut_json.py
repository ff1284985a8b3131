import contextlib
import json
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.formats.cut_json import parse_object, read_beginning

json_texts = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('{"a": "b"', {"a": "b"}),
        ('{"a": "b', {"a": "b"}),
        ('{"a": ["b", "c', {"a": ["b", "c"]}),
        ('{"a": 1, "b', {"a": 1}),
        ('{"a": 1, "b":', {"a": 1}),
        ('{"a": 1, "b": -', {"a": 1}),
        ('{"a": 1, "b": 12', {"a": 1, "b": 12}),
        ('{"a": 1, "b": 1.', {"a": 1, "b": 1}),
        ('{"a": 1, "b": 1e+', {"a": 1, "b": 1}),
        ('{"a": 1, "b": fal', {"a": 1, "b": False}),
        ('{"a": [true, t', {"a": [True, True]}),
        ('{"a": n', {"a": None}),
        ('{"a": "1.', {"a": "1."}),
        ('{"a": "it is t', {"a": "it is t"}),
        ('{"a": ["b}]', {"a": ["b}]"]}),
        ('{"a": "b"}', {"a": "b"}),
        ('{"a": "say \\"x\\"}', {"a": 'say "x"'}),
        ('{"a": "x\\', {"a": "x"}),
        ('{"a": "x\\\\', {"a": "x\\"}),
        ('{"a": "x\\u00e', {"a": "x"}),
        ('{"a": "x\\ud83d\\ude', {"a": "x"}),
        ('{"a": "line\nline', {"a": "line\nline"}),
        ('{"a": "b}', {"a": "b"}),
        ('{"a": ["b", "c]}', {"a": ["b", "c"]}),
        ('{"a": "if (x) { y }', {"a": "if (x) { y }"}),
        ('{"a": ["x[1]', {"a": ["x[1]"]}),
        ("{", {}),
        ("  ", {}),
    ],
)
def test_cut_text_is_parsed_up_to_its_cut(text: str, read: object) -> None:
    assert parse_object(text) == read


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        '{"a": b',
        '{"a" 1',
        '{"a": 1}}',
        '{"a": 1} more',
        '{"a": [1}',
        '{"a": "x\\q',
        '{"a": NaN',
        '{"a": 1e999}',
        '{"a": 1e999, "b',
        '{"path": "x" "dry_run": true, "y',
        '{"a": 1 "b": 2',
        "[1",
        '"text',
        '{"a":' + "[" * 100_000,
    ],
    ids=str,
)
def test_cut_json_invalid_in_the_middle_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"JSON|range|Expecting|Extra|escape|Unterminated|nested"):
        parse_object(text)


@pytest.mark.release
@settings(max_examples=300)
@given(value=json_texts, data=st.data())
def test_every_cut_of_a_json_object_is_read(value: dict[str, object], data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=data.draw(st.booleans()))
    cut = text[: data.draw(st.integers(1, len(text)))]

    read = parse_object(cut)
    whole = list(read)[:-1]

    assert list(read) == list(value)[: len(read)]
    assert {key: read[key] for key in whole} == {key: value[key] for key in whole}


@given(st.text(alphabet='{}[]",:\\ u0123dDtrue-.eE\n', max_size=40))
def test_any_text_is_read_as_json_or_refused_with_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        json.dumps(read_beginning(text), allow_nan=False)


def test_completed_text_is_logged_without_its_content(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="runner"):
        parse_object('{"a": 1}')
        parse_object('{"secret": "hid')

    (record,) = caplog.records
    assert record.getMessage() == "truncated arguments completed"
    assert "hid" not in str(vars(record))
