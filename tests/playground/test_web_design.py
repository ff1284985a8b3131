"""What people see at three widths: nothing leaves its place, and every stop says how to go on.

Source: the issue "The page that tool authors reach for", line 7.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playground_support import Shown
from web_support import VIEWS, Seen, browsing, expect

pytestmark = pytest.mark.kernel

TOOLS = Path(__file__).with_name("design_tools.py")
WIDTHS = (1440, 820, 390)

OUTSIDE = """() => {
  const card = document.querySelector('section[aria-label=Call]').getBoundingClientRect();
  const parts = 'section[aria-label=Call] :is([role=tabpanel], .logs, .logs li span, .body)';
  return [...document.querySelectorAll(parts)]
    .map(each => each.getBoundingClientRect()).filter(box => box.width > 0)
    .filter(box => box.left < card.left - 1 || box.right > card.right + 1).length; }"""

# Of words on a control: cut, or broken into lines.
BROKEN = """() => [...document.querySelectorAll(
    'header.top :is(a, button, .fact), .button, [role=tab], .badge, h1')]
  .filter(each => each.offsetParent !== null && !each.classList.contains('mono'))
  .filter(each => {
    const range = document.createRange();
    range.selectNodeContents(each);
    const seen = [...range.getClientRects()].filter(r => r.width > 1);
    const lines = new Set(seen.map(r => Math.round(r.bottom / 14)));
    return each.scrollWidth > each.clientWidth + 1 && each.clientWidth > 0 || lines.size > 2; })
  .map(each => each.innerText)"""


@pytest.fixture(scope="module")
def opened(start: Callable[..., Shown]) -> Iterator[Callable[..., Seen]]:
    with browsing(start("dev", tools=TOOLS)) as opening:
        yield opening


@pytest.fixture
def seen(opened: Callable[..., Seen]) -> Iterator[Seen]:
    seen = opened(viewport={"width": 1440, "height": 900})
    yield seen
    seen.page.context.close()


def wide(seen: Seen, width: int) -> None:
    seen.page.set_viewport_size({"width": width, "height": 900})


def test_a_long_log_stays_within_its_card(seen: Seen) -> None:
    seen.tool("chatter")
    seen.run()

    log = seen.tab("Log").get_by_role("list", name="Log")

    expect(log.get_by_role("listitem")).to_have_count(400)
    for width in WIDTHS:
        wide(seen, width)
        assert seen.page.evaluate(OUTSIDE) == 0, width
        assert log.bounding_box()["height"] < 400  # type: ignore[index]


def test_an_empty_required_field_stops_run_and_gets_the_focus(seen: Seen) -> None:
    asked: list[str] = []
    seen.page.on("request", lambda each: asked.append(each.headers.get("mcp-method", "")))
    seen.tool("send")

    seen.page.get_by_role("button", name="Run").first.click()

    title = seen.page.get_by_label("title")
    expect(title).to_be_focused()
    expect(title).to_have_attribute("aria-invalid", "true")
    expect(seen.page.get_by_role("alert").first).to_contain_text("title: fill this in, it is required")
    title.fill("A letter")
    seen.page.keyboard.press("Control+Enter")
    expect(seen.page.get_by_label("town")).to_be_focused()
    assert "tools/call" not in asked
    seen.page.get_by_label("town").fill("Ulm")
    # No value is a value of this one: it has been chosen for it.
    assert "A letter to Ulm" in seen.run().inner_text()
    assert asked.count("tools/call") == 1
    # Emptied again it stops again.
    title.fill("")
    seen.page.keyboard.press("Control+Enter")
    expect(title).to_be_focused()
    assert asked.count("tools/call") == 1


def test_what_is_written_as_json_is_sent_as_it_is(seen: Seen) -> None:
    seen.tool("send")
    seen.write("{}")

    expect(seen.run("failed")).to_contain_text("What to try")


def test_a_form_says_required_optional_and_no_value_in_these_words(seen: Seen) -> None:
    seen.tool("send")
    form = seen.page.get_by_role("region", name="Arguments")

    expect(form.locator(".field", has=seen.page.get_by_label("title")).first).to_contain_text("required")
    note = form.locator(".field", has=seen.page.get_by_label("note")).last
    expect(note).to_contain_text("optional")
    nothing = note.get_by_role("button", name="send “no value” (null)")
    expect(nothing).to_have_attribute("aria-pressed", "true")
    expect(seen.page.get_by_label("note")).to_have_attribute("placeholder", "no value (null)")
    nothing.click()
    expect(nothing).to_have_attribute("aria-pressed", "false")


def test_each_denial_has_the_advice_that_fits_it(seen: Seen) -> None:
    seen.tool("reaches")
    seen.run()

    panel = seen.tab("Sandbox")
    row = panel.get_by_role("row")

    expect(row.filter(has_text="192.0.2.7").or_(row.filter(has_text="data.example")).first).to_contain_text(
        "--allow-net="
    )
    expect(row.filter(has_text="/srv/reports")).to_contain_text("--allow-write=/srv/reports")
    expect(row.filter(has_text="/etc/toolcell-forbidden")).to_contain_text("Use the tool's home")
    for network in row.filter(has_text="socket.").all():
        expect(network).not_to_contain_text("home, or give the tool the file")


def test_the_result_comes_into_sight_after_run_on_a_narrow_screen(seen: Seen) -> None:
    wide(seen, 390)
    seen.tool("send")
    seen.write('{"title": "A letter", "place": {"town": "Ulm", "street": null}}')
    seen.page.get_by_role("tab", name="Form", exact=True).click()

    seen.run()

    expect(seen.call.locator("header")).to_be_in_viewport()
    expect(seen.call.get_by_role("tab", name="Result")).to_be_in_viewport()
    bar = seen.page.locator("header.top").bounding_box()["height"]  # type: ignore[index]

    def is_in_sight() -> bool:
        box = seen.call.bounding_box()
        # At the top, or all of it.
        return box is not None and bar <= box["y"] and (box["y"] < 450 or box["y"] + box["height"] <= 900)

    assert seen.shown.until(is_in_sight)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_view_is_wider_than_the_screen_and_no_control_breaks(seen: Seen, width: int) -> None:
    wide(seen, width)
    for view in VIEWS:
        seen.go(view)
        expect(seen.page.get_by_role("main").get_by_role("heading").first).to_be_visible()
        expect(seen.page.get_by_role("main")).not_to_contain_text("Loading…")

        assert seen.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, view
        assert seen.page.evaluate(BROKEN) == [], view


def test_the_chosen_tab_is_in_sight_where_not_all_fit(seen: Seen) -> None:
    wide(seen, 390)
    seen.tool("ping")
    seen.run()

    seen.call.get_by_role("tab", name="Result").focus()
    seen.page.keyboard.press("End")

    expect(seen.call.get_by_role("tab", name="Messages")).to_be_in_viewport(ratio=1)


def test_all_parts_of_a_result_stand_in_one_row_at_820_pixels(seen: Seen) -> None:
    wide(seen, 820)
    seen.tool("chatter")
    seen.run()

    for name in ("Result", "As a model sees it", "Timing", "Sandbox", "Log 400", "Messages"):
        expect(seen.call.get_by_role("tab", name=name)).to_be_in_viewport(ratio=1)


def test_a_server_that_is_gone_is_named_and_tried_again(seen: Seen) -> None:
    seen.tool("ping")
    seen.page.context.set_offline(True)
    seen.page.get_by_role("button", name="Run").first.click()

    gone = seen.page.get_by_role("alert").filter(has_text="does not answer")
    expect(gone).to_contain_text("looks does not answer")
    gone.get_by_role("button", name="Try again").click()
    expect(gone).to_be_visible()
    seen.page.context.set_offline(False)
    gone.get_by_role("button", name="Try again").click()

    expect(gone).to_have_count(0)
    seen.run()


def test_a_first_visit_shows_by_one_sample_call_what_the_page_is(seen: Seen) -> None:
    seen.tool("greet")
    first = seen.page.get_by_role("region", name="What this page is")
    expect(first).to_contain_text("Call a tool and see what it does")
    expect(first).to_contain_text('"name": "Ada"')

    first.get_by_role("button", name="Make this sample call").click()

    expect(seen.ended()).to_contain_text("Hello, Ada.")
    expect(seen.page.get_by_label("name")).to_have_value("Ada")
    expect(first).to_have_count(0)
    # It has been seen: another tool does not explain the page again.
    seen.tool("send")
    expect(first).to_have_count(0)


def test_a_sample_of_a_tool_that_may_change_something_runs_nothing(seen: Seen) -> None:
    seen.tool("send")
    first = seen.page.get_by_role("region", name="What this page is")

    first.get_by_role("button", name="Fill in the sample").click()

    expect(seen.page.get_by_label("title")).to_have_value("hello")
    expect(seen.page.get_by_role("button", name="Run").first).to_be_focused()
    expect(seen.call).to_have_count(0)
    seen.page.keyboard.press("Enter")
    expect(seen.ended()).to_contain_text("hello to hello")
