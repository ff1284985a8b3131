"""The MCP Inspector finds and shows all five apps of the sample, in a shell and in a browser."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from inspecting import app_info, inspector
from widget_server import WidgetServer, serving

from runner.protocol.artifact_tools import READING

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]

CALLS: Sequence[tuple[str, Mapping[str, Any]]] = [
    ("display_chat", {"seedMessage": "Hello there"}),
    ("display_search_results", {"query": "pizza", "results": [{"id": 1, "title": "Margherita"}]}),
    ("display_table", {"columns": ["name"], "rows": [{"name": "Diavola"}], "title": "Menu"}),
    ("display_demo", {}),
    ("display_dashboard", {}),
]
SHOWN = ["Hello there", "Margherita", "Diavola", "", "chatui"]


@pytest.fixture(scope="module")
def server() -> Iterator[WidgetServer]:
    with serving() as served:
        yield served


def test_inspector_command_line_finds_app_of_every_tool(server: WidgetServer) -> None:
    status, printed = app_info(server.url, ["--method", "tools/list", "--app-info"])

    apps = {app["toolName"]: app for app in printed if app["hasApp"]}
    assert status == 0
    assert list(apps) == [name for name, _ in CALLS]
    assert [app["toolName"] for app in printed] == [*apps, *READING]
    for app in apps.values():
        assert app["resourceMimeType"] == "text/html;profile=mcp-app"
        assert app["visibility"] == ["model"]
        assert app["prefersBorder"] is True
        assert app["csp"]["resourceDomains"] == ["https://web-sandbox.oaiusercontent.com"]


# A browser with five pages, and a program of others in each: quick, unless the machine has much else to do.
@pytest.mark.timeout(300)
def test_the_page_of_the_inspector_shows_what_each_tool_returned(server: WidgetServer) -> None:
    with inspector() as page:
        shown = page.show(server.url, CALLS)

    assert [app.status for app in shown] == ["ready"] * len(CALLS)
    assert [
        (name, word) for (name, _), word, app in zip(CALLS, SHOWN, shown, strict=True) if word not in app.text
    ] == []
    assert all(app.text.strip() for app in shown)
