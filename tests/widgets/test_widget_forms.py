"""The forms of what pages show: what a tool declares, returns, and what the page itself accepts."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import ValidationError
from support import ROOT

from runner.toolset.catalog import Catalog
from runner.widgets.forms import (
    Chat,
    Dashboard,
    Demo,
    Form,
    RecentChat,
    SearchResult,
    SearchResults,
    Stat,
    Table,
)

SCHEMAS = ROOT / "runner" / "widgets" / "schemas"

FULL: list[tuple[str, Form]] = [
    ("chat-view", Chat(seed_message="Hello", locale="en")),
    (
        "search-results",
        SearchResults(
            query="pizza",
            results=[
                SearchResult(id=1, title="A", description="B", url="https://e.org", tags=["x"]),
                SearchResult(id="b", title="C"),
                SearchResult(id=1.5, title="D"),
            ],
            locale="de-AT",
        ),
    ),
    ("pizzaz-table", Table(title="T", columns=["a"], data=[{"a": [1, None, {"b": True}]}], locale="ar")),
    ("kitchen-sink-lite", Demo(demo=True)),
    (
        "dashboard-widget",
        Dashboard(
            dashboard=True,
            header_text="H",
            stats=[Stat(label="L", value="1", change="+1 %")],
            recent_chats=[RecentChat(id=7, title="T", model="M", time="now")],
        ),
    ),
]
LEAST: list[tuple[str, Form]] = [
    ("chat-view", Chat(seed_message="", locale="en")),
    ("search-results", SearchResults(query="", results=[], locale="en")),
    ("pizzaz-table", Table(columns=[], data=[], locale="en")),
    ("dashboard-widget", Dashboard(dashboard=True)),
]


@pytest.mark.parametrize(("page", "form"), [*FULL, *LEAST])
def test_tool_result_fits_its_schema_and_the_page(page: str, form: Form) -> None:
    schema = json.loads((SCHEMAS / f"{page}.json").read_text())

    Draft202012Validator(form.output_schema()).validate(form.content())
    Draft202012Validator(schema).validate(form.content())


def test_fields_have_documented_names_and_unset_ones_are_absent() -> None:
    """Source: S3-25 to S3-27, S3-46 and S3-75 to S3-77."""
    assert [form.content() for _, form in LEAST] == [
        {"seedMessage": "", "locale": "en"},
        {"query": "", "results": [], "locale": "en"},
        {"columns": [], "data": [], "locale": "en"},
        {"dashboard": True},
    ]
    assert set(FULL[-1][1].content()) == {"dashboard", "headerText", "stats", "recentChats"}


def test_ids_stay_numbers_or_texts_as_they_were_given() -> None:
    """Source: S3-23 and S3-77."""
    shown: Any = FULL[1][1].content()

    assert [(result["id"], type(result["id"])) for result in shown["results"]] == [
        (1, int),
        ("b", str),
        (1.5, float),
    ]


@pytest.mark.parametrize(
    ("form", "values"),
    [
        (Chat, {"seedMessage": "x", "locale": "en", "more": 1}),
        (SearchResults, {"query": "x", "locale": "en"}),
        (Table, {"columns": "a", "data": [], "locale": "en"}),
        (Demo, {"demo": False}),
        (Dashboard, {"dashboard": True, "stats": [{"label": "L"}]}),
    ],
)
def test_another_form_is_refused_and_does_not_fit_the_schema(
    form: type[Form], values: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError):
        form.model_validate(values)

    assert not Draft202012Validator(form.output_schema()).is_valid(values)


HELLO: dict[str, Any] = {
    "name": "t",
    "version": None,
    "instructions": None,
    "website_url": None,
    "icons": [],
    "capabilities": {},
    "tools": [{"name": "a", "inputSchema": {}, "_meta": {"securitySchemes": [{"type": "noauth"}, 5]}}],
}
PAGE = {"text": "<p>", "meta": {"ui": {}}, "uris": {"ui://a": "text/html"}}


def test_a_catalog_answers_for_its_pages_and_for_nothing_else() -> None:
    catalog = Catalog.from_hello({**HELLO, "pages": [PAGE]})

    assert catalog.page("ui://a?v=1") == {
        "contents": [{"uri": "ui://a?v=1", "mimeType": "text/html", "text": "<p>", "_meta": {"ui": {}}}]
    }
    assert catalog.page("ui://b") is None
    assert catalog.tools["a"].security == ({"type": "noauth"},)
    assert Catalog.from_hello(HELLO).pages == {}


@pytest.mark.parametrize(
    "pages", [5, [5], [{}], [{**PAGE, "uris": []}], [{**PAGE, "meta": 5}], ["x"], {"a": 1}, None]
)
def test_pages_of_another_form_are_the_fault_of_a_hostile_file(pages: Any) -> None:
    with pytest.raises(ValueError, match="the tool file's catalog is malformed"):
        Catalog.from_hello({**HELLO, "pages": pages})
