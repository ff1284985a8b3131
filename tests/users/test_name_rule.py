"""Names of users out of claims: kept as they are, or refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import UsageError
from runner.settings.settings import Settings
from runner.settings.sources import load
from runner.users.identity import IdentityError, User, resolve
from runner.users.name_rule import accepted_name
from runner.users.usernames import home_segment

NAMES = st.text(min_size=1, max_size=300).map(lambda text: text + "@example.com")


@given(NAMES, NAMES)
def test_different_names_stay_different(one: str, other: str) -> None:
    named = []
    for claimed in {one, other}:
        try:
            name = accepted_name(claimed, suffix="@example.com")
        except ValueError:
            continue
        named.append((name, home_segment(name)))

    assert len({name for name, _ in named}) == len({segment for _, segment in named}) == len(named)


def test_long_names_not_truncated() -> None:
    long = "a" * 5000

    assert accepted_name(long + "b") != accepted_name(long + "c")
    assert home_segment(long + "b") != home_segment(long + "c")


@pytest.mark.parametrize(
    "name", ["ann", "Ann", "ann@example.com", "Jürgen", "Анна", "山田 太郎", "a b", "O'Neil"]
)
def test_usual_names_accepted_unchanged(name: str) -> None:
    assert accepted_name(name) == name


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        ({}, "p\N{CYRILLIC SMALL LETTER A}ul"),
        ({}, "Ju\N{COMBINING DIAERESIS}rgen"),
        ({}, "ann\n"),
        ({}, "ann\u202e"),
        ({}, "ann\N{VARIATION SELECTOR-16}"),
        ({}, "ann\N{HANGUL CHOSEONG FILLER}"),
        ({}, "a\N{COMBINING GRAPHEME JOINER}nn"),
        ({}, "ann\N{BRAILLE PATTERN BLANK}"),
        ({}, "ann\N{VARIATION SELECTOR-17}"),
        ({}, "a\N{LISU LETTER NA}nn"),
        ({}, "ann  smith"),
        ({"pattern": "[ -~]+"}, "Jürgen"),
        ({"pattern": r"[^\p{Lu}]+"}, "Ann"),
        ({"suffix": "@a.org"}, "ann@a.org.evil"),
        ({"pattern": "[a-z]+"}, "ann1"),
        ({"pattern": "ann|bob"}, "annx"),
    ],
)
def test_confusable_name_refused(rule: dict[str, str], name: str) -> None:
    with pytest.raises(ValueError, match="it "):
        accepted_name(name, **rule)


# Default_Ignorable_Code_Point. Source: Unicode 16, DerivedCoreProperties.txt.
IGNORABLE = (
    "00AD 034F 061C 115F-1160 17B4-17B5 180B-180F 200B-200F 202A-202E 2060-206F 3164 FE00-FE0F FEFF FFA0 "
    "FFF0-FFF8 1BCA0-1BCA3 1D173-1D17A E0000-E0FFF"
)


def test_accepted_name_has_no_invisible_characters() -> None:
    taken = []
    for span in IGNORABLE.split():
        first, _, last = span.partition("-")
        for point in range(int(first, 16), int(last or first, 16) + 1):
            with contextlib.suppress(ValueError):
                taken.append(accepted_name(f"a{chr(point)}b"))

    assert taken == []
    assert accepted_name("a b") == "a b"


def test_subject_cannot_pose_as_verified_address() -> None:
    settings = Settings()

    def named(**claims: str) -> User:
        return resolve(settings, transport="http", claims=claims, host="0.0.0.0")

    assert named(email="ann@example.com", sub="1") == User("ann@example.com")
    assert named(sub="ann") == User("ann")
    with pytest.raises(IdentityError, match="identity_claim"):
        named(sub="ann@example.com")
    by_subject = Settings(identity_claim=("sub",))
    assert resolve(by_subject, transport="http", claims={"sub": "ann@example.com"}, host="0.0.0.0") == User(
        "ann@example.com"
    )


def test_invalid_pattern_refused_at_start() -> None:
    with pytest.raises(UsageError, match="is not an RE2 pattern"):
        load({"identity_pattern": "("})
