"""The sample widgets in the Playground's host.

Source: the issue "The Playground", part 3.
"""

import json
from collections.abc import Callable, Iterator

import pytest
from playground_support import Shown
from playwright.sync_api import FrameLocator
from support import SAMPLES
from web_support import Seen, browsing, expect

pytestmark = pytest.mark.kernel

TABLE = {"columns": ["town", "people"], "rows": [{"town": "Ulm", "people": 126_000}], "title": "Towns"}


@pytest.fixture(scope="module")
def opened(start: Callable[..., Shown]) -> Iterator[Callable[..., Seen]]:
    with browsing(start(tools=SAMPLES / "chatui.py")) as opening:
        yield opening


@pytest.fixture
def table(opened: Callable[..., Seen]) -> Iterator[Seen]:
    """A page that shows the table widget."""
    seen = opened()
    seen.tool("display_table")
    seen.write(json.dumps(TABLE))
    seen.run()
    yield seen
    seen.page.context.close()


def widget(seen: Seen) -> FrameLocator:
    return seen.page.frame_locator(".stage iframe").frame_locator("iframe")


@pytest.mark.parametrize("dialect", ["MCP Apps", "ChatGPT Apps"])
def test_a_widget_is_shown_in_each_dialect(table: Seen, dialect: str) -> None:
    table.page.get_by_label("Dialect").select_option(dialect)

    expect(widget(table).get_by_text("Ulm")).to_be_visible()
    outer = next(frame for frame in table.page.frames if "/widget" in frame.url)
    assert not outer.url.startswith(table.shown.base)


def test_the_switches_reach_the_widget_and_the_log_shows_it(table: Seen) -> None:
    expect(widget(table).get_by_text("Ulm")).to_be_visible()
    page = table.page
    page.get_by_text("Messages and violations").click()

    page.get_by_role("group", name="Host").get_by_label("Theme").select_option("dark")
    expect(page.locator(".logs").last).to_contain_text('"theme":"dark"')
    page.get_by_label("Language").fill("de")
    page.get_by_label("Language").press("Enter")
    expect(page.locator(".logs").last).to_contain_text('"locale":"de"')
    page.get_by_label("Width").select_option("390")
    expect(page.locator(".stage")).to_have_css("width", "390px")
    page.get_by_label("Mode").select_option("fullscreen")

    expect(page.locator(".logs").last).to_contain_text('"displayMode":"fullscreen"')
    expect(page.locator(".stage")).to_have_css("position", "fixed")
    page.get_by_role("button", name="Leave fullscreen").click()
    expect(page.locator(".stage")).not_to_have_css("position", "fixed")
