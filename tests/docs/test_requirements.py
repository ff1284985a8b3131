"""The table of requirements: complete, in step with code and tests, and able to say what is missing."""

from dataclasses import replace
from typing import Any

import pytest
from requirement_coverage import (
    COVERAGE,
    Marks,
    Requirement,
    Status,
    complaints,
    ids_in,
    lines_of_tests,
    marked,
    read,
    table,
)


@pytest.fixture(scope="module")
def marks() -> Marks:
    return marked()


@pytest.fixture(scope="module")
def requirements(marks: Marks) -> dict[str, Requirement]:
    return read(marks)


def test_requirements_each_have_place_and_test_or_reason(
    requirements: dict[str, Requirement], marks: Marks
) -> None:
    assert len(requirements) == 520
    assert complaints(requirements, marks) == []


def test_committed_table_matches_code_and_tests(requirements: dict[str, Requirement]) -> None:
    assert COVERAGE.read_text() == table(requirements), "run scripts/requirements, and commit what it wrote"


def test_unknown_requirement_id_named_with_its_file(
    requirements: dict[str, Requirement], marks: Marks
) -> None:
    strange = Marks(places=marks.places | {"S9-1": ["runner/x.py"]}, tests=marks.tests)

    assert complaints(requirements, strange) == ["S9-1 is not a requirement, runner/x.py"]


@pytest.mark.release
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"places": ()}, "S1-116 is named by no source file"),
        ({"tests": ()}, "S1-116 is named by no test"),
        ({"status": Status.PARTLY}, "S1-116 is partly, and no sentence says why"),
        ({"status": Status.NOT, "why": "because"}, "S1-116 is not, and no sentence says why"),
    ],
)
def test_incomplete_requirement_is_reported(
    requirements: dict[str, Requirement], marks: Marks, fault: dict[str, Any], says: str
) -> None:
    faulty = requirements | {"S1-116": replace(requirements["S1-116"], **fault)}

    assert complaints(faulty, marks) == [says]


def test_requirement_without_entry_is_reported(requirements: dict[str, Requirement], marks: Marks) -> None:
    rest = {name: each for name, each in requirements.items() if name != "S4-12"}

    assert complaints(rest, marks) == ["S4-12 has no phrase in requirements.toml"]


def test_id_range_names_every_id_between() -> None:
    text = "requirements S1-8, S1-12 to S1-14\n    and S2-1 to S3-2"

    assert [name for name, _ in ids_in(text)] == ["S1-8", "S1-12", "S1-13", "S1-14", "S2-1", "S3-2"]


def test_requirement_id_belongs_to_enclosing_test() -> None:
    lines = ["# one", "@mark", "def test_a():", "    pass", "", "def helper():", "    pass"]

    belongs = lines_of_tests("\n".join(lines))

    assert belongs == {1: "test_a", 2: "test_a", 3: "test_a", 4: "test_a"}
