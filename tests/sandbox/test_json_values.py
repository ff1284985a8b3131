"""Values of a JSON text are counted before it is read: never too few, whatever the text is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.strict_json import values_above

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='ab,[{:"\\\n\u20ac'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='a,"\\'), inner),
    max_leaves=20,
)


def values_in(value: object) -> int:
    """Count all values except lists and objects, and those that hold nothing."""
    held = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return sum(map(values_in, held)) if held else 1


@given(JSON, st.booleans())
def test_values_are_counted_completely_outside_strings_only(value: object, is_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii).encode()
    least = values_in(value)

    for most in range(least - 1):
        assert values_above(text, most) > most
    assert values_above(json.dumps("," * 100 + str(value)).encode(), 1) == 0


@given(JSON)
def test_other_json_encodings_hide_no_value(value: object) -> None:
    text = json.dumps(['"', "\\", *[value] * 3]).encode("utf-16")

    assert values_above(text, 1) >= 4


@pytest.mark.parametrize("text", [b'"' + b'\\"' * 1_000_000, b'["' + b'",\\"' * 500_000, b"\\" * 2_000_000])
def test_unclosed_quotes_are_scanned_once(text: bytes) -> None:
    """Scanned again from each quote, this would take hours."""
    assert values_above(b"[" + b"," * 2_000_000 + text, 1_000_000) > 1_000_000


@pytest.mark.parametrize("empty", ["[]", "{}", "[ \n]"])
def test_empty_container_counts_as_one_value(empty: str) -> None:
    text = f"[{', '.join([empty] * 1000)}]".encode()

    assert values_above(text, 1000) == 0
    assert values_above(text, 999) == 1000
