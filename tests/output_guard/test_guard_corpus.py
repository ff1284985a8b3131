"""Real files of both sides: every binary one is found in its base64, no text is taken for one.

`corpus/index.tsv` names the origin and licence of each file; none was made for this test. Texts were chosen
by their endings; those with a data: URL were left out. Two that turned out to hold a whole file in their
base64 are kept apart, in `carrier`.
"""

import csv
import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from guard_samples import b64
from guard_shelf import Shelf, guarded

CORPUS = Path(__file__).parent / "corpus"
with (CORPUS / "index.tsv").open(newline="") as _file:
    ROWS = list(csv.DictReader(_file, delimiter="\t", quoting=csv.QUOTE_NONE))

# Only detection is tried: nothing here is to be stored for its length.
ROOMY: dict[str, Any] = {"max_inline_size": 10_000_000, "max_observation_chars": 10_000_000}


def content(row: dict[str, str]) -> bytes:
    return (CORPUS / row["side"] / row["file"]).read_bytes()


def side(name: str) -> list[dict[str, str]]:
    return [row for row in ROWS if row["side"] == name]


def found(text: str) -> list[bytes]:
    shelf = Shelf()
    guarded({"value": text}, store=shelf, **ROOMY)
    return shelf.contents


@pytest.mark.parametrize("name", ["binary", "text"])
def test_each_side_has_200_files_and_at_most_five_of_one_source(name: str) -> None:
    rows = side(name)

    assert len(rows) >= 200
    assert max(Counter(row["origin"] for row in rows).values()) <= 5
    assert all(row["origin"] and row["licence"] for row in rows)


def test_the_files_are_those_of_the_index() -> None:
    digests = {row["file"]: hashlib.sha256(content(row)).hexdigest() for row in ROWS}

    assert digests == {row["file"]: row["sha256"] for row in ROWS}
    assert sorted(path.name for path in CORPUS.glob("*/*")) == sorted(digests)


def test_every_binary_file_is_found_in_its_base64(capsys: pytest.CaptureFixture[str]) -> None:
    rows = side("binary")

    missed = [row["file"] for row in rows if found(b64(content(row))) != [content(row)]]

    with capsys.disabled():
        print(f"\nbinary files found: {len(rows) - len(missed)} of {len(rows)}")
    assert missed == []


def test_no_text_is_taken_for_a_binary_file(capsys: pytest.CaptureFixture[str]) -> None:
    rows = side("text")

    alarms = [row["file"] for row in rows if found(content(row).decode())]

    with capsys.disabled():
        print(f"\nfalse alarms: {len(alarms)} of {len(rows)}")
    assert alarms == []


def test_a_file_within_a_text_is_found_in_it() -> None:
    inside = {row["file"]: [piece[:4] for piece in found(content(row).decode())] for row in side("carrier")}

    assert inside == {"npm-xlsx-1.mjs.txt": [b"PK\x03\x04"], "pypi-nbformat-1.ipynb.txt": [b"\x89PNG"]}


def test_no_base64_of_text_is_taken_for_a_binary_file(capsys: pytest.CaptureFixture[str]) -> None:
    rows = side("text")

    alarms = [row["file"] for row in rows if found(b64(content(row)))]

    with capsys.disabled():
        print(f"\nfalse alarms on base64 of text: {len(alarms)} of {len(rows)}")
    assert alarms == []
