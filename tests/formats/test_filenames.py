"""Safe file names: the rules F1 to F4, by example and for every name."""

import re
import unicodedata

import pytest
from cpu_time import cpu_s
from hypothesis import given
from hypothesis import strategies as st

from runner.formats.filenames import MAX_BYTES, safe_name, unique_name

_PIECES = [
    "..",
    ".",
    "/",
    "\\",
    "%2f",
    "%255C",
    "C:",
    "CON",
    "com1",
    " ",
    "-",
    "\0",
    "\u202e",
    ".tar",
    ".csv",
    "é",
]
NAMES = st.one_of(
    st.text(max_size=400),
    st.lists(st.one_of(st.sampled_from(_PIECES), st.text(max_size=3)), max_size=30).map("".join),
    st.builds(
        lambda unit, count, end: unit * count + end,
        st.text(max_size=2),
        st.integers(0, 300),
        st.text(max_size=9),
    ),
    st.text(st.characters(codec=None), max_size=20),
)


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("../../malicious.txt", "malicious.txt"),
        ("..\\..\\..\\windows\\system32\\file", "file"),
        ("C:\\Users\\bob\\x.txt", "x.txt"),
        ("C:x.txt", "x.txt"),
        ("\\\\server\\share\\plan.xlsx", "plan.xlsx"),
        ("..%2f..%2Fetc%5cpasswd", "passwd"),
        ("..%252f..%255Cx.txt", "x.txt"),
        ("folder/", "folder"),
        ("a/ /", "a"),
    ],
)
def test_only_the_last_segment_of_a_path_stays(name: str, safe: str) -> None:
    """Source: S1-50 to S1-52, S1-94 and S1-95."""
    assert safe_name(name) == safe


@pytest.mark.parametrize(
    "name",
    [
        "normal_file.csv",
        "archive.tar.gz",
        "my cool idea (1)!.pdf",
        "日本語レポート.pdf",
        "100%25 sure.txt",
        "половина ½.txt",
        "~$report.docx",
        "👨\u200d👩\u200d👧.png",
        "content.txt",
        "a..b",
        "x" * 255,
    ],
)
def test_harmless_name_is_unchanged(name: str) -> None:
    """Source: S1-53."""
    assert safe_name(name) == name


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("re\0po\x1brt\n.csv", "report.csv"),
        ("report\u202egpj.exe", "reportgpj.exe"),
        ("\ufeffzero\u200b.txt", "zero.txt"),
        (".\0./\u202e", "file"),
        (" \u3000a.txt \t", "a.txt"),
        ("half\ud800.txt", "half.txt"),
        ("hid\U000e0041den.txt", "hidden.txt"),
    ],
)
def test_invisible_characters_are_removed(name: str, safe: str) -> None:
    """Source: S1-96."""
    assert safe_name(name) == safe


@pytest.mark.parametrize(
    "alike", ["\u2215", "\uff0f", "\u2216", "\uff3c", "\uff1a", "\u2236", "\u2024", "\uff0e", "\u2025"]
)
def test_a_look_alike_of_a_separator_becomes_an_underscore(alike: str) -> None:
    assert safe_name(f"a{alike}b.txt") == "a_b.txt"


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("report.", "report"),
        ("report.txt.. .", "report.txt"),
        ("nul.", "_nul"),
        (".csv.", "_.csv"),
        ("y" * 254 + ". " + "z" * 40, "y" * 254),
    ],
)
def test_dots_and_blanks_at_the_end_are_removed_as_windows_does(name: str, safe: str) -> None:
    assert safe_name(name) == safe


def test_a_name_is_composed() -> None:
    assert safe_name("re\u0301sume\u0301.txt") == "résumé.txt"


@pytest.mark.parametrize("name", ["", ".", "..", "...", " . ", "/", "../..", "C:", "\0", "x/..", "\u202e"])
def test_empty_name_gets_a_default(name: str) -> None:
    assert safe_name(name) == "file"


@pytest.mark.parametrize(
    "name",
    [
        ".bashrc",
        ".csv",
        "-rf",
        "--",
        "CON",
        "con.txt",
        "Nul.tar.gz",
        "COM1.csv",
        "LPT9",
        "COM¹.txt",
        "aux .txt",
    ],
)
def test_safe_name_prefixes_names_reserved_by_a_system(name: str) -> None:
    """Source: S1-98."""
    assert safe_name(name) == f"_{name}"


@pytest.mark.parametrize("name", ["CONTENT.txt", "com10.csv", "console", "lpt.txt", "nullable.csv"])
def test_a_name_that_only_begins_like_a_device_stays(name: str) -> None:
    assert safe_name(name) == name


@pytest.mark.parametrize("extension", [".csv", ".tar.gz", ".parquet", ".データ"])
@pytest.mark.parametrize("unit", ["x", "é", "日", "👍"])
def test_a_long_name_is_shortened_before_its_extension(unit: str, extension: str) -> None:
    """Source: S1-97 and S1-99."""
    safe = safe_name(unit * 300 + extension)

    assert MAX_BYTES - 4 < len(safe.encode()) <= MAX_BYTES
    assert re.fullmatch(f"(?:{unit})+{re.escape(extension)}", safe)


def test_extension_above_limit_is_cut() -> None:
    assert safe_name("a." + "b" * 300) == "a." + "b" * 253


def test_shortening_never_exposes_a_device_name() -> None:
    assert safe_name("CON" + " " * 300 + "x") == "_CON"


@given(NAMES)
def test_every_name_becomes_one_valid_file_name(name: str) -> None:
    safe = safe_name(name)

    assert 0 < len(safe.encode()) <= MAX_BYTES
    assert safe == safe.strip()
    assert not safe.endswith(".")
    assert not safe.startswith((".", "-"))
    assert not re.search(r"[/\\:\0]|%(25)*(2f|5c)", safe, re.IGNORECASE)
    assert not any(unicodedata.category(char) in {"Cc", "Cs", "Zl", "Zp"} for char in safe)
    assert not re.fullmatch(r"(?i)(con|prn|aux|nul|com\d|lpt\d)\s*(\..*)?", safe)
    assert unicodedata.is_normalized("NFC", safe)


@given(NAMES)
def test_a_safe_name_stands_for_itself(name: str) -> None:
    safe = safe_name(name)

    assert safe_name(safe) == safe


def test_a_free_name_is_not_changed() -> None:
    assert unique_name("a.csv", {"b.csv"}) == "a.csv"


def test_a_taken_name_gets_a_number_before_its_extension() -> None:
    assert unique_name("a.csv", {"a.csv"}) == "a_2.csv"
    assert unique_name("a.tar.gz", {"a.tar.gz", "a_2.tar.gz"}) == "a_3.tar.gz"
    assert unique_name("README", {"README"}) == "README_2"


@given(NAMES, st.integers(1, 12))
def test_names_made_unique_differ_and_stay_safe(name: str, count: int) -> None:
    taken: set[str] = set()

    for _ in range(count):
        taken.add(unique_name(safe_name(name), taken))

    assert len(taken) == count
    assert all(len(unique.encode()) <= MAX_BYTES and safe_name(unique) == unique for unique in taken)


@pytest.mark.parametrize(
    "unit", [".", " .", "\u0301\u0316", "\u200b", "\ufdfa", "%25", "C:", "/ ", "\\.", "x", ".tar"]
)
def test_a_long_name_costs_as_little_as_a_short_one(unit: str) -> None:
    long = "a" + unit * (1_000_000 // len(unit)) + "b.txt"

    # 0.005 s on a quiet machine; some of them took an hour.
    assert cpu_s(lambda: safe_name(long)) < 0.1
    assert safe_name(long).endswith(".txt")


def test_a_long_name_keeps_its_beginning_and_its_end() -> None:
    assert safe_name("folder/begin" + "x" * 5000 + ".csv") == "begin" + "x" * 246 + ".csv"


def test_excess_combining_marks_are_removed() -> None:
    assert safe_name("e\u0301" + "\u0316" * 20) == unicodedata.normalize("NFC", "e\u0301" + "\u0316" * 20)
    assert safe_name("z" + "\u0301" * 100) == unicodedata.normalize("NFC", "z" + "\u0301" * 30)
