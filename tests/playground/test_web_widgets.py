"""The sample widgets in the Playground's host.

Source: `docs/widgets.md`.
"""

import json
import re
from collections.abc import Callable, Iterator

import pytest
from playground_support import Shown
from playwright.sync_api import Frame, FrameLocator
from support import SAMPLES
from web_support import Seen, browsing, expect

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm]

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


def inside(seen: Seen) -> Frame:
    """Return the frame in which the widget runs."""
    expect(widget(seen).get_by_text("Ulm")).to_be_visible()
    return next(each for each in seen.page.frames if each.parent_frame and each.parent_frame.parent_frame)


def storage_sizes(seen: Seen) -> dict[str, int]:
    """Return how long what this browser keeps of each widget is."""
    return dict(
        seen.page.evaluate(
            "Object.fromEntries(Object.entries(localStorage)"
            ".filter(([key]) => key.startsWith('toolcell widget ')).map(([key, text]) => [key, text.length]))"
        )
    )


KEEP = """length => new Promise(done => {
  addEventListener("message", ({data}) => { if (data.id === "mine") done(data.error?.message ?? "kept"); });
  const params = {state: "x".repeat(length)};
  parent.postMessage({jsonrpc: "2.0", id: "mine", method: "toolcell/widget-state", params}, "*");
})"""


def test_widget_state_survives_reload_and_goes_with_history(table: Seen) -> None:
    inside(table).evaluate("openai.setWidgetState({page: 3})")

    table.page.reload()

    assert inside(table).evaluate("openai.widgetState") == {"page": 3}
    table.go("history")
    table.page.get_by_role("button", name="Clear history").click()
    expect(table.page.get_by_text("No calls yet.")).to_be_visible()
    assert storage_sizes(table) == {}


def test_widget_state_above_limit_is_refused_and_old_state_stays(table: Seen) -> None:
    frame = inside(table)

    first, second = frame.evaluate(KEEP, 60_000), frame.evaluate(KEEP, 70_000)

    assert first == "kept"
    assert "may have 65,536 characters of JSON, this one has 70,002" in second
    assert [60_000 < each < 61_000 for each in storage_sizes(table).values()] == [True]


def test_widget_states_above_total_limit_drop_the_oldest(table: Seen) -> None:
    table.page.evaluate(
        "for (let n = 0; n < 20; n++)"
        " localStorage.setItem(`toolcell widget old-${n}`, `${n} ${JSON.stringify('x'.repeat(60_000))}`)"
    )

    assert inside(table).evaluate(KEEP, 50_000) == "kept"

    left = storage_sizes(table)
    assert sum(left.values()) <= 1024 * 1024 + 100
    assert {name for name in left if "old-" in name} == {f"toolcell widget old-{n}" for n in range(4, 20)}
    assert len(left) == 17


@pytest.mark.parametrize("dialect", ["MCP Apps", "ChatGPT Apps"])
def test_a_widget_is_shown_in_each_dialect(table: Seen, dialect: str) -> None:
    table.page.get_by_label("Dialect").select_option(dialect)

    expect(widget(table).get_by_text("Ulm")).to_be_visible()
    outer = next(frame for frame in table.page.frames if "/widget" in frame.url)
    assert not outer.url.startswith(table.shown.base)


THEME = """wanted => new Promise(done => {
  const look = () => openai.theme === wanted ? done(wanted) : setTimeout(look, 20);
  look();
})"""


def test_widget_has_page_theme_until_another_is_chosen(table: Seen) -> None:
    table.page.emulate_media(color_scheme="light")
    frame = inside(table)
    assert frame.evaluate("openai.theme") == "light"

    # The system's, as long as the page has no theme of its own.
    table.page.emulate_media(color_scheme="dark")
    assert frame.evaluate(THEME, "dark") == "dark"
    frame.evaluate("openai.requestModal({title: 'All towns'})")
    modal = table.page.frame_locator("dialog iframe").frame_locator("iframe")
    expect(modal.get_by_text("Ulm")).to_be_visible()
    table.page.emulate_media(color_scheme="light")
    assert modal.locator("html").evaluate(f"(_, wanted) => ({THEME})(wanted)", "light") == "light"
    table.page.get_by_role("dialog").get_by_role("button", name="Close").click()
    table.page.emulate_media(color_scheme="dark")
    assert frame.evaluate(THEME, "dark") == "dark"

    table.page.get_by_label("Menu").click()
    table.page.get_by_role("button", name="Theme: auto").click()
    assert frame.evaluate(THEME, "light") == "light"
    table.page.get_by_role("button", name="Theme: light").click()
    assert frame.evaluate(THEME, "dark") == "dark"
    expect(table.page.locator(".stage")).to_have_class(re.compile("dark"))

    table.page.get_by_role("group", name="Host").get_by_label("Theme").select_option("light")
    assert frame.evaluate(THEME, "light") == "light"
    table.page.get_by_role("button", name="Theme: dark").click()
    expect(table.page.get_by_role("button", name="Theme: auto")).to_be_visible()
    expect(table.page.locator(".stage")).to_have_class(re.compile("light"))
    assert frame.evaluate("openai.theme") == "light"


def test_the_switches_reach_the_widget_and_the_log_shows_it(table: Seen) -> None:
    expect(widget(table).get_by_text("Ulm")).to_be_visible()
    page = table.page
    page.get_by_text("Messages and violations").click()

    page.get_by_role("group", name="Host").get_by_label("Theme").select_option("dark")
    expect(page.locator(".logs").last).to_contain_text('"theme":"dark"')
    page.get_by_label("Width").select_option("390")
    expect(page.locator(".stage")).to_have_css("width", "390px")
    inside(table).evaluate("openai.requestDisplayMode({mode: 'fullscreen'})")

    expect(page.locator(".logs").last).to_contain_text('"displayMode":"fullscreen"')
    expect(page.locator(".stage")).to_have_css("position", "fixed")
    page.get_by_role("button", name="Leave fullscreen").click()
    expect(page.locator(".stage")).not_to_have_css("position", "fixed")
