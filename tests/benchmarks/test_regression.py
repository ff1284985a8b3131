import json
from pathlib import Path
from typing import Literal

import pytest

from benchmarks.figures import TIMES, Target
from benchmarks.regression import FIGURES, document, read, worse

MACHINE = {"processor": "some processor"}


def ratio(
    what: str, measured: float | None, *, bound: Literal["most", "least"] = "most", reason: str = ""
) -> Target:
    return Target(what=what, limit=1.0, measured=measured, unit=TIMES, bound=bound, reason=reason)


def test_a_ratio_within_the_tolerance_passes_on_either_side() -> None:
    targets = [ratio("slower by a fifth", 1.2), ratio("much faster", 0.1)]

    assert worse(targets, {"slower by a fifth": 1.0, "much faster": 1.0}, tolerance=0.25) == []


def test_ratio_above_tolerance_names_both_figures() -> None:
    faults = worse([ratio("median", 1.3)], {"median": 1.0}, tolerance=0.25)

    assert faults == ["median: 1.3, and it was 1; at most 1.25 passes"]


def test_ratio_that_must_be_large_is_worse_when_smaller() -> None:
    targets = [ratio("throughput", 0.5, bound="least"), ratio("more of it", 2.0, bound="least")]

    faults = worse(targets, {"throughput": 0.8, "more of it": 0.8}, tolerance=0.25)

    assert faults == ["throughput: 0.5, and it was 0.8; at least 0.64 passes"]


def test_committed_ratio_missing_from_a_run_is_a_fault() -> None:
    targets = [ratio("to bubblewrap", None, reason="bwrap is not here")]

    faults = worse(targets, {"to bubblewrap": 0.05, "to plain": 1.0}, tolerance=0.25)

    assert faults == [
        "to bubblewrap: it was 0.05; not measured: bwrap is not here",
        "to plain: it was 1; this run has no such figure",
    ]


def test_new_ratio_is_not_a_fault_until_committed() -> None:
    assert worse([ratio("new", 99.0)], {}, tolerance=0.25) == []


def test_only_measured_ratios_are_committed_and_read_back(tmp_path: Path) -> None:
    memory = Target(what="memory", limit=12, measured=7.0, unit=" MiB")
    path = tmp_path / "figures.json"

    path.write_text(document([ratio("median", 1.23456), memory, ratio("missing", None)], MACHINE))

    assert read(path) == {"median": 1.2346}
    assert json.loads(path.read_text())["machine"] == MACHINE


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"ratios": {"median": "fast"}}'])
def test_a_file_without_ratios_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "figures.json"
    path.write_text(text)

    with pytest.raises(ValueError, match=r"figures\.json"):
        read(path)


def test_missing_file_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.json cannot be read"):
        read(tmp_path / "none.json")


def test_the_committed_figures_name_their_machine_and_are_ratios() -> None:
    committed = json.loads(FIGURES.read_text())

    assert {"processor", "cores", "kernel", "python"} <= set(committed["machine"])
    assert len(read(FIGURES)) > 10
    assert all(value > 0 for value in read(FIGURES).values())
