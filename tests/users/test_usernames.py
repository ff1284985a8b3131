"""User names as path segments: literal where they are safe, distinct always."""

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from runner.users.usernames import home_segment

USERS = st.one_of(
    st.text(max_size=300),
    st.text("aA.=q/@\0é", max_size=6),
    st.from_regex(r"=[qh][a-zA-Z0-9=]{0,70}", fullmatch=True),
).filter(lambda name: bool(name.strip("\0")))


@pytest.mark.parametrize(
    "name", ["alice", "alice@example.com", "A", "0day", "bob-2_x+y", "a.b..c", "x" * 128]
)
def test_safe_name_is_its_own_segment(name: str) -> None:
    assert home_segment(name) == name


@pytest.mark.parametrize(
    ("name", "segment"),
    [
        ("../bob", "=q=2E=2E=2Fbob"),
        (".", "=q=2E"),
        ("é", "=q=C3=A9"),
        ("a b", "=qa=20b"),
        ("=qalice", "=q=3Dqalice"),
        ("alice\n", "=qalice=0A"),
        ("a\0", "=qa=00"),
        ("-rf", "=q-rf"),
        ("x" * 129, "=q" + "x" * 129),
    ],
)
def test_other_name_is_quoted(name: str, segment: str) -> None:
    assert home_segment(name) == segment


def test_name_too_long_to_quote_is_hashed() -> None:
    assert re.fullmatch(r"=h[0-9a-f]{64}", home_segment("é" * 100))
    assert home_segment("é" * 100) != home_segment("é" * 101)


@pytest.mark.parametrize("name", ["", "\0", "\0\0", "\ud800", "alice\udcff"])
def test_invalid_name_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a user name"):
        home_segment(name)


@given(USERS)
def test_segment_is_safe_in_path(name: str) -> None:
    segment = home_segment(name)

    assert re.fullmatch(r"[A-Za-z0-9=][A-Za-z0-9._@+=-]*", segment)
    assert len(segment) <= 200
    assert home_segment(name) == segment


@given(USERS, USERS)
def test_users_never_share_a_segment(one: str, other: str) -> None:
    assume(one != other)

    assert home_segment(one) != home_segment(other)


@given(USERS)
def test_user_cannot_take_segment_of_another_by_name(name: str) -> None:
    segment = home_segment(name)
    assume(segment != name)

    assert home_segment(segment) != segment
