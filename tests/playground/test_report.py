"""The report of a call, on request. Source: `docs/widgets.md`."""

import pytest
from playground_support import Shown, answer, ask

pytestmark = pytest.mark.kernel

ASKED = {"_meta": {"toolcell/report": True}}


def test_a_call_tells_how_long_each_step_took(shown: Shown) -> None:
    with shown.entered() as browser:
        result = answer(ask(browser, "tools/call", {"name": "double", "arguments": {"number": 2}, **ASKED}))

    report = result["_meta"]["toolcell/report"]
    assert list(report["steps_ms"]) == ["admit", "stage", "lease", "run", "collect", "render", "guard"]
    assert all(took >= 0 for took in report["steps_ms"].values())
    assert report["tier"] in ("process", "user", "namespace")
    assert report["deadlines"] == {"idle_s": 30.0, "total_s": 600.0}


def test_call_without_report_request_gets_none(shown: Shown) -> None:
    with shown.entered() as browser:
        result = answer(ask(browser, "tools/call", {"name": "double", "arguments": {"number": 2}}))

    assert "toolcell/report" not in result["_meta"]


def test_report_lists_denials_of_a_call_that_continued(shown: Shown) -> None:
    with shown.entered() as browser:
        result = answer(ask(browser, "tools/call", {"name": "forbidden", "arguments": {}, **ASKED}))

    denials = result["_meta"]["toolcell/report"]["denials"]
    assert [denial["path"] for denial in denials] == ["/etc/toolcell-forbidden"]
