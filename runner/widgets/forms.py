"""Data types of five built-in pages: a tool that returns one can be shown by its page.

    from runner.widgets.forms import Table

    Table(columns=["name"], data=[{"name": "Margherita"}], locale="en").content()

Fields that were not given are left out. Source: document 003, "Output (structuredContent)"; C41, C44.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

__all__ = [
    "Chat",
    "Dashboard",
    "Demo",
    "Form",
    "RecentChat",
    "SearchResult",
    "SearchResults",
    "Stat",
    "Table",
]

Id = str | int | float


class Form(BaseModel):
    """The output of a tool in the form that a page shows: these fields, and no others."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, validate_by_name=True)

    def content(self) -> dict[str, Any]:
        """Return it as structured content, with only the given fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    @classmethod
    def output_schema(cls) -> dict[str, Any]:
        """Return the output schema of a tool that returns it."""
        return cls.model_json_schema(by_alias=True)


class Chat(Form):
    """Shown by `chat-view`."""

    seed_message: str
    locale: str


class SearchResult(Form):
    """One result or recommendation."""

    id: Id
    title: str
    description: str = ""
    url: str = ""
    tags: list[str] = []


class SearchResults(Form):
    """Shown by `search-results`."""

    query: str
    results: list[SearchResult]
    locale: str


class Table(Form):
    """Shown by `pizzaz-table`."""

    title: str = ""
    columns: list[str]
    data: list[dict[str, Any]]
    locale: str


class Demo(Form):
    """Shown by `kitchen-sink-lite`."""

    demo: Literal[True]


class Stat(Form):
    """A key figure and how it changed."""

    label: str
    value: str
    change: str


class RecentChat(Form):
    """A recent conversation."""

    id: Id
    title: str
    model: str
    time: str


class Dashboard(Form):
    """Shown by `dashboard-widget`."""

    dashboard: Literal[True]
    header_text: str = ""
    stats: list[Stat] = []
    recent_chats: list[RecentChat] = []
