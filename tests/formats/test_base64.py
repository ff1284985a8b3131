"""Base64 is decoded strictly, whatever decoder its length calls for."""

import pybase64
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.formats.base64 import strict


@given(st.text("AQz+/= \n-é", max_size=13))
def test_short_text_is_decoded_as_a_long_one(text: str) -> None:
    # A long text takes the other decoder.
    long = strict("A" * 65_536 + text)

    assert strict(text) == (None if long is None else long[49_152:])


@given(st.binary(max_size=100))
def test_decoding_returns_what_was_encoded(content: bytes) -> None:
    assert strict(pybase64.b64encode_as_string(content)) == content


@pytest.mark.parametrize("text", ["QQ", "QQ=", "QQ===", "AAAA====", "QQ==QQ==", "====", "A\nAA", "-_AA"])
def test_faulty_base64_is_refused(text: str) -> None:
    assert strict(text) is None
