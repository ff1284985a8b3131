"""Likeness of names, and its cost."""

from functools import cache

from cpu_time import cpu_s
from hypothesis import given
from hypothesis import strategies as st

from runner.formats.nearest import likeness, nearest


def longest_common(one: str, other: str) -> int:
    """Return the length of the longest common subsequence, as its definition has it."""

    @cache
    def of(i: int, j: int) -> int:
        if i == len(one) or j == len(other):
            return 0
        if one[i] == other[j]:
            return 1 + of(i + 1, j + 1)
        return max(of(i + 1, j), of(i, j + 1))

    return of(0, 0)


@given(st.text("abc", min_size=1, max_size=20), st.text("abc", min_size=1, max_size=20))
def test_likeness_any_names_is_that_of_the_definition(one: str, other: str) -> None:
    assert likeness(one, other) == 2 * longest_common(one, other) / (len(one) + len(other))


def test_nearest_misspelled_name_returns_best_first() -> None:
    names = ["plan.txt", "sales.tsv", "sale.csv", "sales.csv"]

    assert nearest("seles.csv", names) == ["sales.csv", "sale.csv", "sales.tsv"]
    assert nearest("zzz", names) == []
    assert nearest("", names) == []


def test_nearest_long_names_compares_both_ends() -> None:
    assert nearest("a" * 200 + ".csv", ["a" * 190 + ".csv", "b" * 200 + ".csv"]) == ["a" * 190 + ".csv"]


def test_nearest_hostile_names_takes_bounded_time() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz0123456789" * 7
    names = [letters[n % 36 :] + letters[: n % 36] for n in range(100_000)]

    # 0.04 s on a quiet machine; `difflib` takes a minute.
    assert cpu_s(lambda: nearest(letters[::-1], names)) < 0.5
