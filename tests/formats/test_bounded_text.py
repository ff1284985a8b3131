"""Cuts leave at most what is allowed, and a mark."""

from hypothesis import given
from hypothesis import strategies as st

from runner.formats.bounded_text import cut, cut_counted, cut_middle


@given(st.text(max_size=50), st.integers(4, 20))
def test_cut_any_text_has_at_most_that_length(text: str, most: int) -> None:
    for made in (cut(text, most), cut_middle(text, most)):
        assert len(made) <= most
        assert made == text if len(text) <= most else "…" in made


def test_cut_long_text_keeps_its_beginning() -> None:
    assert cut("abcdef", 4) == "abc…"


def test_cut_middle_long_name_keeps_its_extension() -> None:
    assert cut_middle("abcdefghij.csv", 9) == "abcd….csv"


def test_cut_counted_long_text_appends_its_length() -> None:
    assert cut_counted("abcdef", 6) == "abcdef"
    assert cut_counted("abcdefg", 6) == "abcdef… (7 characters)"
