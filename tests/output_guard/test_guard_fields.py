"""Fields that are known to hold files, by path and by preset, and what the model is told of them."""

import json
from typing import Any

import pytest
from guard_samples import PDF, b64
from guard_shelf import Shelf, guarded

SHORT = b"%PDF-1.4 short"
TEXT = b64(SHORT)


def with_field(result: Any, shelf: Shelf | None, path: str = "f", **field: Any) -> Any:
    fields = {"tool": [{"field_path": path, "content_type": "pdf", **field}]}
    return guarded(result, store=shelf, tool_fields=fields)


@pytest.mark.parametrize(
    ("path", "result"),
    [
        ("f", {"f": TEXT}),
        ("$.f", {"f": TEXT}),
        ("a.f", {"a": {"f": TEXT}}),
        ("a.f", {"result": {"a": {"f": TEXT}}}),
        ("result.f", {"result": {"f": TEXT}}),
        ("f", [{"type": "text", "text": "ok"}, {"f": TEXT}]),
        ("r.blob", [{"r": {"blob": TEXT}}]),
        ("a[*].f", {"a": [{"f": TEXT}]}),
        ("a.f", {"a": [{"f": TEXT}]}),
        ("a[0].f", {"a": [{"f": TEXT}]}),
        ("a[-1]", {"a": [1, TEXT]}),
        ("*.f", {"any": {"f": TEXT}}),
        ("$..f", {"deep": [{"er": {"f": TEXT}}]}),
        ("$['a.b']", {"a.b": TEXT}),
        ("f", {"structuredContent": {"f": TEXT}}),
        ("f", {"content": [{"f": TEXT}]}),
        ("f", [{"type": "text", "text": json.dumps({"f": TEXT})}]),
        ("f", {"content": [{"type": "text", "text": json.dumps({"f": TEXT})}]}),
        ("f", json.dumps({"result": {"f": TEXT}})),
    ],
)
def test_a_path_leads_to_its_field(shelf: Shelf, path: str, result: Any) -> None:
    value = with_field(result, shelf, path).value

    assert shelf.contents == [SHORT]
    assert TEXT not in json.dumps(value)
    assert shelf.records[0].id in json.dumps(value)


def test_all_other_fields_stay(shelf: Shelf) -> None:
    value = with_field({"f": TEXT, "n": 1, "deep": {"x": [TEXT]}}, shelf).value

    assert (value["n"], value["deep"]) == (1, {"x": [TEXT]})


@pytest.mark.parametrize("held", ["!!! no base64", None, 7, {"a": 1}, ["x"], ""])
def test_non_base64_field_is_unchanged(shelf: Shelf, held: Any) -> None:
    done = with_field({"f": held}, shelf)

    assert (done.value, shelf.records) == ({"f": held}, [])
    assert bool(done.warnings) == (held == "!!! no base64")


def test_a_warning_names_the_path() -> None:
    done = with_field({"a": {"pdf_data": "???"}}, None, "a.pdf_data")

    assert [warning for warning in done.warnings if "a.pdf_data" in warning]


@pytest.mark.parametrize(
    ("field", "mime"),
    [
        ({}, "application/pdf"),
        ({"mime_type": "application/x-own"}, "application/x-own"),
        ({"content_type": "text"}, "text/plain"),
    ],
)
def test_mime_type_is_configured_or_detected_from_content(
    shelf: Shelf, field: dict[str, str], mime: str
) -> None:
    """Source: S4-29 and S4-30."""
    with_field({"f": TEXT}, shelf, **field)

    assert shelf.records[0].mime == mime


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (None, "Downloaded pdf (14 bytes)"),
        ("{content_type} {size} {size_human} {filename}", "pdf 14 14B r.pdf"),
        ("'{title}' by {author}, {pages} pages", "'T' by {author}, 3 pages"),
        ("{0} {} {f} {title.x} {nested}", "{0} {} {f} {title.x} {nested}"),
    ],
)
def test_a_summary_is_filled_in_with_facts_and_fields_beside_it(
    shelf: Shelf, template: str | None, text: str
) -> None:
    """Source: S4-31 and S4-32."""
    field = {"summary_template": template} if template else {}
    payload = {"f": TEXT, "filename": "r.pdf", "title": "T", "pages": 3, "nested": {"a": 1}}

    value = with_field(payload, shelf, **field).value

    assert value["f"]["summary"] == text


def test_a_summary_names_the_artifact(shelf: Shelf) -> None:
    """Source: S4-75 and S4-77."""
    value = with_field({"f": TEXT}, shelf, summary_template="Artifact: {artifact_id}").value

    assert value["f"]["summary"] == f"Artifact: {shelf.records[0].id}"


@pytest.mark.parametrize(
    ("server", "tool"),
    [
        ("tableau", "download_workbook"),
        (None, "download_workbook"),
        ("prod", "download_workbook"),
        (None, "tableau__download_workbook"),
        ("tableau", "tableau__download_workbook"),
        (None, "tableau.download_workbook"),
        (None, "mcp__tableau__download_workbook"),
        ("tableau", "tableau_download_workbook"),
    ],
)
def test_the_tableau_preset_fires_whatever_prefix_a_tool_carries(
    shelf: Shelf, server: str | None, tool: str
) -> None:
    """Source: S4-1, S4-2, S4-32 and S4-109."""
    values = {"content": TEXT, "name": "Sales Dashboard", "format": "pdf"}

    value = guarded(values, store=shelf, server=server, tool=tool, tool_fields={"$preset": "tableau"}).value

    assert shelf.contents == [SHORT]
    assert "Sales Dashboard" in value["content"]["summary"]
    assert value["content"]["artifact"]["filename"] == "Sales Dashboard.pdf"
    assert (value["name"], value["format"]) == ("Sales Dashboard", "pdf")


def test_the_tableau_preset_knows_views_and_lets_lists_pass(shelf: Shelf) -> None:
    """Source: S4-33, S4-110 and S4-111."""
    view = {"pdf_data": TEXT, "view_name": "Revenue", "generated_at": "2025-12-22T10:30:00Z"}
    workbooks = {"workbooks": [{"id": "123", "name": "Sales", "project": "Analytics"}]}
    preset = {"$preset": "tableau"}

    seen = guarded(view, store=shelf, tool="get_view_as_pdf", tool_fields=preset).value
    listed = guarded(workbooks, store=shelf, tool="list_workbooks", tool_fields=preset).value

    assert "Revenue" in seen["pdf_data"]["summary"]
    assert listed == workbooks


@pytest.mark.parametrize(
    ("key", "server", "fires"),
    [
        ("tool", "s", True),
        ("s.tool", "s", True),
        ("s__tool", "s", True),
        ("other.tool", "s", False),
        ("s.tool", None, False),
    ],
)
def test_a_key_with_a_server_means_that_server_only(
    shelf: Shelf, key: str, server: str | None, fires: bool
) -> None:
    guarded({"f": TEXT}, store=shelf, server=server, tool_fields={key: [{"field_path": "f"}]})

    assert bool(shelf.records) == fires


def test_fields_that_nobody_declared_still_pass_detection(shelf: Shelf) -> None:
    """Source: S4-34 and S4-42."""
    value = with_field({"f": TEXT, "g": b64(PDF)}, shelf).value

    assert shelf.contents == [SHORT, PDF]
    assert set(value) == {"f", "g"}
