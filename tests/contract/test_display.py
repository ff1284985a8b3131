"""Display decisions: file, order, viewer and page, and the events for the user's interface."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from result_fakes import Shelf, json_values

from runner.artifacts.accept import process_artifacts
from runner.contract.display import Decision, decide
from runner.contract.interface_events import announce, shown_file
from runner.contract.normalise import normalise
from runner.steps.client_message import referenced

DASH = "https://dash.example.com"

REPORT = {"name": "report.html", "mime": "text/html"}
CHART = {"name": "chart.png", "mime": "image/png"}
ARCHIVE = {"name": "data.zip", "mime": "application/zip"}


def decided(*artifacts: dict[str, Any], display: Any = None, canvas: Any = None) -> Decision:
    value = {"results": 1, "artifacts": list(artifacts), "display": display, "canvas": canvas}
    return decide(value, allowed_origins=[DASH])


def page(url: Any, *allowed: str, **more: Any) -> Decision:
    return decide({"results": 1, "display": {"type": "iframe", "url": url, **more}}, allowed_origins=allowed)


# what opens


@pytest.mark.parametrize(
    ("display", "auto_open", "opens"),
    [
        (None, False, True),
        (None, True, True),
        ({}, False, True),
        ({"open_canvas": True}, False, True),
        ({"open_canvas": False}, True, False),
        ({"open_canvas": False, "storage_action": "store_and_open"}, True, False),
        ({"storage_action": "store_and_open"}, False, True),
        ({"storage_action": "store"}, False, False),
        ({"storage_action": "store"}, True, True),
        ({"notification": "Saved"}, False, False),
        ({"open_canvas": "yes", "mode": "split"}, False, False),
        ("open", False, True),
    ],
)
def test_first_explicit_hint_decides_whether_it_opens(display: Any, auto_open: bool, opens: bool) -> None:
    """Source: S0-13, S0-71, S1-67 and S1-88."""
    assert decided({**REPORT, "auto_open": auto_open}, display=display).open is opens


def test_display_without_content_opens_nothing() -> None:
    assert decided(CHART, display={"open_canvas": True}).open
    assert not decided(ARCHIVE, display={"open_canvas": True}).open
    assert not decided({**ARCHIVE, "auto_open": True}, display={"storage_action": "store_and_open"}).open
    assert not decided().open


# in which order


@pytest.mark.parametrize(
    ("artifacts", "display", "order"),
    [
        ([ARCHIVE, CHART, REPORT], None, ("chart.png", "report.html")),
        ([CHART, REPORT], {"primary_file": "report.html"}, ("report.html", "chart.png")),
        ([CHART, REPORT], {"primary_file": "nope.html"}, ("chart.png", "report.html")),
        ([CHART, ARCHIVE], {"primary_file": "data.zip"}, ("chart.png",)),
        ([CHART, {**REPORT, "auto_open": True}], None, ("report.html", "chart.png")),
        (
            [CHART, {**REPORT, "auto_open": True}],
            {"primary_file": "chart.png"},
            ("chart.png", "report.html"),
        ),
        ([{**ARCHIVE, "auto_open": True}, CHART], None, ("chart.png",)),
        ([CHART, REPORT], {"primary_file": 7}, ("chart.png", "report.html")),
    ],
)
def test_display_order_puts_wanted_file_first(
    artifacts: list[dict[str, Any]], display: Any, order: tuple[str, ...]
) -> None:
    """Source: S0-14, S0-25 to S0-27, S0-72 and S1-89."""
    assert decided(*artifacts, display=display).order == order


# in which viewer


@pytest.mark.parametrize(
    ("name", "mime", "viewer"),
    [
        ("x.svg", "image/svg+xml", "image"),
        ("x.webp", "image/webp", "image"),
        ("noext", "application/pdf", "pdf"),
        ("noext", "TEXT/HTML; charset=utf-8", "html"),
        ("x.md", "text/markdown", "code"),
        ("x.csv", "text/csv", "code"),
        ("x.json", "application/json", "code"),
        ("x.geojson", "application/geo+json", "code"),
        ("x.py", "application/octet-stream", "code"),
        ("x.rs", "application/octet-stream", "code"),
        ("X.PNG", "binary/octet-stream", "image"),
        ("x.pdf", None, "pdf"),
        ("x.html", "application/octet-stream", "html"),
        ("x.html", "application/zip", None),
        ("x.parquet", "application/vnd.apache.parquet", None),
        ("x.bin", "application/octet-stream", None),
        ("noext", "application/octet-stream", None),
        ("x.wav", "audio/wav", None),
    ],
)
def test_viewer_chosen_by_type_then_by_name_if_generic(
    name: str, mime: str | None, viewer: str | None
) -> None:
    """Source: S0-24 and S0-29 to S0-32."""
    assert decided({"name": name, "mime": mime}).viewer == viewer


@pytest.mark.parametrize(
    ("artifact", "display", "viewer"),
    [
        ({**REPORT, "viewer": "code"}, {"viewer_hint": "html"}, "code"),
        (REPORT, {"viewer_hint": "code"}, "code"),
        ({"name": "a.csv", "mime": "text/csv", "viewer": "data"}, None, "data"),
        ({**REPORT, "viewer": "auto"}, {"viewer_hint": "auto"}, "html"),
        ({**REPORT, "viewer": "hologram"}, {"viewer_hint": "oracle"}, "html"),
        ({**CHART, "viewer": "html"}, {"viewer_hint": "pdf"}, "image"),
        ({"name": "a.txt", "mime": "text/plain", "viewer": "html"}, None, "code"),
    ],
)
def test_requested_viewer_used_where_it_fits_file(
    artifact: dict[str, Any], display: Any, viewer: str
) -> None:
    assert decided(artifact, display=display).viewer == viewer


# layout and storage


def test_defaults_equal_unknown_words() -> None:
    """Source: S0-12, S0-28, S0-79 and S1-7."""
    plain = decided(REPORT, display={"open_canvas": True})
    strange = decided(
        REPORT, display={"open_canvas": True, "mode": "diagonal", "storage_action": "burn", "notification": 3}
    )

    assert strange == plain
    assert (plain.mode, plain.storage_action, plain.stored) == ("replace", "store", True)


def test_known_words_are_accepted() -> None:
    """Source: S0-15, S0-16, S1-90 and S1-91."""
    decision = decided(REPORT, display={"mode": "split", "storage_action": "temporary"})

    assert (decision.mode, decision.storage_action, decision.stored) == ("split", "temporary", False)


def test_no_viewer_runs_scripts_of_file() -> None:
    """Source: S0-31."""
    assert not decided({"name": "x.svg", "mime": "image/svg+xml"}).scripts_executable


# pages


def test_page_of_allowed_origin_opens_without_files() -> None:
    decision = page(f"{DASH}/v?q=1", DASH, title="T")

    assert decision.to_json()["iframe"] == {
        "src": f"{DASH}/v?q=1",
        "title": "T",
        "sandbox": ["allow-scripts", "allow-forms"],
        "persistence": "session",
    }
    assert decision.open


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://DASH.example.com:443/v", DASH),
        (f"{DASH}/v", f"{DASH}:443/"),
        ("http://localhost:8080/", "http://localhost:8080"),
        ("https://anything.example/x", "*"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
    ],
)
def test_origin_compared_as_by_browser(url: str, allowed: str) -> None:
    assert page(url, allowed).open


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example/x",
        "http://dash.example.com/v",
        "https://dash.example.com:8443/v",
        "https://dash.example.com.evil.example/",
        "https://dash.example.com@evil.example/",
        "https://evil.example\\@dash.example.com/",
        "https://evil.example/\t@dash.example.com/",
        "https://dash.example.com\\.evil.example/",
        "https://dash.example.com:port/",
        "https://[dash.example.com/",
        "https://",
        "https:dash.example.com",
        "//dash.example.com/v",
        "https://\uff44ash.example.com/",
        "https://dash.example.com./",
        "",
        None,
        7,
    ],
)
def test_page_of_other_or_unclear_origin_does_not_open(url: Any) -> None:
    decision = page(url, DASH, open_canvas=True)

    assert not decision.open
    assert decision.panel is None
    assert decision.reason is not None
    assert "origin" in decision.reason or "scheme" in decision.reason


@pytest.mark.parametrize("url", ["javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", "blob:x"])
def test_page_of_forbidden_scheme_never_opens_reason_names_it(url: str) -> None:
    decision = page(url, "*")

    assert not decision.open
    assert decision.reason is not None
    assert repr(url.partition(":")[0]) in decision.reason


def test_page_never_opens_if_operator_allows_none() -> None:
    assert not decide({"display": {"type": "iframe", "url": DASH}}).open


def test_refused_page_keeps_files_from_opening_instead() -> None:
    assert not decided(REPORT, display={"type": "iframe", "url": "https://evil.example"}).open


def test_both_spellings_of_page_are_equal() -> None:
    spelled = {"url": f"{DASH}/v", "title": "T"}

    assert decided(canvas={**spelled, "open": True}) == decided(display={**spelled, "type": "iframe"})


def test_canvas_states_how_its_tab_is_kept() -> None:
    """Source: S0-35 and S0-36."""
    canvas = {
        "open": True,
        "id": "monitor-42",
        "persistence": "pinned",
        "type": "iframe",
        "url": f"{DASH}/v",
        "token": "secret",
        "mode": "split",
    }

    decision = decided(canvas=canvas)

    assert decision.panel is not None
    assert (decision.open, decision.mode) == (True, "split")
    assert decision.panel.to_json() == {
        "src": f"{DASH}/v",
        "title": "dash.example.com",
        "sandbox": ["allow-scripts", "allow-forms"],
        "id": "monitor-42",
        "persistence": "pinned",
        "token": "secret",
    }


def test_canvas_not_to_open_changes_nothing() -> None:
    """Source: S0-33 and S0-34."""
    closed = {"open": False, "url": "https://evil.example"}

    assert decided(REPORT, canvas=closed) == decided(REPORT)


def test_canvas_of_reserved_type_not_opened() -> None:
    """Source: S0-37."""
    decision = decided(canvas={"open": True, "type": "hologram", "url": DASH})

    assert (decision.open, decision.panel) == (False, None)
    assert decision.reason == "a canvas of type 'hologram' is not known; only `iframe` is"


@pytest.mark.parametrize(
    ("wanted", "granted"),
    [
        ("allow-scripts allow-same-origin", {"allow-scripts"}),
        (["allow-same-origin", "ALLOW-SCRIPTS"], {"allow-scripts"}),
        ("allow-same-origin", {"allow-same-origin"}),
        ("allow-top-navigation allow-popups-to-escape-sandbox allow-forms", {"allow-forms"}),
        ("", set()),
        (7, {"allow-scripts", "allow-forms"}),
    ],
)
def test_page_gets_harmless_part_of_requested_sandbox(wanted: Any, granted: set[str]) -> None:
    decision = page(DASH, DASH, sandbox=wanted)

    assert decision.panel is not None
    assert set(decision.panel.sandbox) == granted


# any value


@given(json_values, json_values, st.lists(json_values, max_size=3), st.lists(st.text(max_size=9), max_size=2))
def test_decision_never_fails(display: Any, canvas: Any, artifacts: list[Any], origins: list[str]) -> None:
    value = {"results": 1, "display": display, "canvas": canvas, "artifacts": artifacts}

    plan = decide(value, allowed_origins=origins).to_json()

    assert not plan["open"] or plan["order"] or "iframe" in plan


# events


def announced(payload: dict[str, Any]) -> list[dict[str, Any]]:
    processed = asyncio.run(
        process_artifacts(
            normalise({"structuredContent": payload}, wrapped=False),
            home=None,
            inline_max_bytes=2**20,
            max_bytes=2**30,
            keep=Shelf(),
        )
    )
    value = referenced(processed)
    return announce(value, decide(value, allowed_origins=[DASH]))


def test_interface_events_list_files_before_display() -> None:
    events = announced(
        {
            "results": "ok",
            "artifacts": [
                {"name": "../my report.html", "b64": "PGgxPg==", "mime": "text/html", "description": "Q3"},
                {"name": "data.zip", "b64": "aGk=", "mime": "application/zip", "category": "draft"},
            ],
            "display": {"open_canvas": True, "primary_file": "../my report.html", "notification": "Saved"},
        }
    )

    report = {
        "name": "my report.html",
        "mime": "text/html",
        "size": 4,
        "description": "Q3",
        "uri": events[0]["files"][0]["uri"],
        "category": "report",
        "showable": True,
    }
    archive = {
        "name": "data.zip",
        "mime": "application/zip",
        "size": 2,
        "category": "draft",
        "uri": events[0]["files"][1]["uri"],
        "showable": False,
    }
    display = {"open": True, "primary_file": "my report.html", "mode": "replace", "viewer": "html"}
    assert report["uri"].startswith("artifact://art_")
    assert events == [
        {"type": "files_update", "files": [report, archive], "display": display},
        {"type": "canvas_files", "files": [report], **display},
        {"type": "notification", "message": "Saved"},
    ]


def test_interface_receives_page() -> None:
    events = announced({"results": 1, "canvas": {"open": True, "url": f"{DASH}/v", "title": "T"}})

    assert [(event["type"], event["content"]["src"]) for event in events] == [("canvas_content", f"{DASH}/v")]


def test_interface_receives_nothing_without_files() -> None:
    assert announced({"results": 1}) == []


@pytest.mark.parametrize(
    ("name", "mime", "display", "category"),
    [
        ("a.png", "image/png", {}, "visualization"),
        ("a.csv", "text/csv", {}, "dataset"),
        ("a.parquet", "application/vnd.apache.parquet", {}, "dataset"),
        ("a.pdf", "application/pdf", {}, "report"),
        ("a.bin", "application/octet-stream", {}, "other"),
        ("a.png", "image/png", {"category_hint": "draft"}, "draft"),
    ],
)
def test_files_all_have_a_category(name: str, mime: str, display: dict[str, Any], category: str) -> None:
    """Source: S1-66 and S1-92."""
    payload = {
        "results": 1,
        "artifacts": [{"name": name, "b64": "aGk=", "mime": mime}],
        "display": display,
    }

    assert announced(payload)[0]["files"][0]["category"] == category


def test_shown_file_has_description_and_no_storage_place() -> None:
    stored = {
        "name": "q.html",
        "mime": "text/html",
        "size": 524288000,
        "b64": "aGk=",
        "path": "/tmp/alice/q.html",
        "sha256": "00",
        "s3_ref": {"bucket": "user-storage", "key": "alice/artifacts/20240827/q.html", "internal": True},
    }

    assert shown_file(stored) == {"name": "q.html", "mime": "text/html", "size": 524288000}
