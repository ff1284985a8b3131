"""Without a mouse: from the load to a result, through the lists, and to everything by the palette.

Source: `docs/widgets.md`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playground_support import Shown
from web_support import VIEWS as PAGE_VIEWS
from web_support import Seen, browsing, expect

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]

TOOLS = Path(__file__).with_name("design_tools.py")
VIEWS = ("Tools", "Prompts", "Resources", "Files", "Saved", "History", "Messages", "Connection")


@pytest.fixture(scope="module")
def opened(start: Callable[..., Shown]) -> Iterator[Callable[..., Seen]]:
    with browsing(start("dev", tools=TOOLS)) as opening:
        yield opening


@pytest.fixture
def seen(opened: Callable[..., Seen]) -> Iterator[Seen]:
    seen = opened(reduced_motion="reduce")
    expect(seen.page.get_by_role("complementary", name="Tools").get_by_role("link")).to_have_count(9)
    yield seen
    seen.page.context.close()
    assert seen.troubles == []


def press(seen: Seen, *keys: str) -> None:
    for key in keys:
        seen.page.keyboard.press(key)


def palette(seen: Seen, words: str) -> None:
    """Open the palette, write words, and take the first choice."""
    press(seen, "Control+k")
    box = seen.page.get_by_role("combobox", name="Go to a tool")
    box.fill(words)
    expect(seen.page.get_by_role("dialog").get_by_role("option").first).to_be_visible()
    press(seen, "Enter")
    expect(seen.page.get_by_role("dialog")).to_have_count(0)


# What has the focus: what it is, whether its ring is seen, and whether it lies free on the screen. The
# browser scrolls it into sight with one of its next frames, which are few where the machine is busy.
FOCUSED = """async () => {
  const look = element => {
    const ring = element.closest('.drop-zone') ?? element;
    const style = getComputedStyle(ring);
    const box = ring.getBoundingClientRect();
    const seen = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1;
    const across = (Math.max(box.left, 0) + Math.min(box.right, innerWidth)) / 2;
    const down = (Math.max(box.top, 0) + Math.min(box.bottom, innerHeight)) / 2;
    const above = document.elementFromPoint(across, down);
    const label = ring.closest('label');
    const free = above !== null && (ring.contains(above) || (label !== null && label.contains(above)));
    return [element.outerHTML.slice(0, 120), seen, free];
  };
  for (let frame = 0; ; frame++) {
    await new Promise(done => requestAnimationFrame(done));
    const element = document.activeElement;
    if (element === document.body) return null;
    const found = look(element);
    if (frame === 60 || (frame > 0 && found[1] && found[2])) return found;
  }}"""


@pytest.mark.parametrize("width", [1280, 390])
def test_every_focus_stop_of_every_view_is_visible(seen: Seen, width: int) -> None:
    seen.page.set_viewport_size({"width": width, "height": 700})
    seen.go("files")
    # So that there is a list, whose parts are reached.
    with seen.page.expect_file_chooser() as chooser:
        seen.page.get_by_text("choose some").click()
    chooser.value.set_files({"name": "tide.txt", "mimeType": "text/plain", "buffer": b"turns"})
    expect(seen.page.get_by_role("link", name="tide.txt")).to_be_visible()
    for view in PAGE_VIEWS:
        seen.go(view)
        main = seen.page.get_by_role("main")
        expect(main.get_by_role("heading").first).to_be_visible()
        expect(main).not_to_contain_text("Loading…")
        for key in ("Tab", "Shift+Tab"):
            seen.page.evaluate("document.activeElement.blur()")
            stops = 0
            # Forwards through the page and backwards, until the focus is at none of its parts.
            while stops < 200:
                press(seen, key)
                focused = seen.page.evaluate(FOCUSED)
                if focused is None:
                    break
                stops += 1
                assert (view, key, *focused) == (view, key, focused[0], True, True)
            assert 5 < stops < 200


def test_escape_closes_the_palette_and_gives_the_focus_back(seen: Seen) -> None:
    button = seen.page.get_by_role("button", name="Go to")
    button.focus()

    press(seen, "Enter")
    expect(seen.page.get_by_role("combobox", name="Go to a tool")).to_be_focused()
    press(seen, "Escape")

    expect(seen.page.get_by_role("dialog")).to_have_count(0)
    expect(button).to_be_focused()


def test_escape_closes_overlay_before_it_cancels_the_call(seen: Seen) -> None:
    seen.tool("wait")
    main = seen.page.get_by_role("main")
    main.get_by_role("button", name="Run").first.click()
    expect(seen.call).to_contain_text("Running")

    button = seen.page.get_by_role("button", name="Go to")
    button.focus()
    press(seen, "Enter")
    expect(seen.page.get_by_role("dialog")).to_be_visible()
    press(seen, "Escape")
    expect(seen.page.get_by_role("dialog")).to_have_count(0)

    # From a field and from a button of the small form, which gives the focus back.
    form = seen.page.get_by_role("group", name="Save this request")
    for keys in ((), ("Tab", "Tab")):
        main.get_by_role("button", name="Save", exact=True).click()
        expect(form.get_by_label("Name")).to_be_focused()
        press(seen, *keys, "Escape")
        expect(form).to_have_count(0)
        expect(main.get_by_role("button", name="Save", exact=True)).to_be_focused()

    search = seen.page.get_by_label("Search tools")
    search.fill("wait")
    press(seen, "Escape")
    expect(search).to_have_value("")
    press(seen, "Escape")
    expect(search).not_to_be_focused()
    expect(seen.call).to_contain_text("Running")
    press(seen, "Escape")
    seen.ended("cancelled")


def test_palette_marks_one_choice_by_keys_or_mouse(seen: Seen) -> None:
    press(seen, "Control+k")
    options = seen.page.get_by_role("dialog").get_by_role("option")
    expect(options.nth(0)).to_have_attribute("aria-selected", "true")

    options.nth(3).hover()
    expect(options.nth(3)).to_have_attribute("aria-selected", "true")
    press(seen, "ArrowDown")

    expect(options.nth(4)).to_have_attribute("aria-selected", "true")
    coloured = options.evaluate_all(
        "all => all.filter(each => getComputedStyle(each).backgroundColor !== 'rgba(0, 0, 0, 0)').length"
    )
    assert coloured == 1
    press(seen, "Escape")


def test_keys_alone_lead_from_the_load_to_a_result(seen: Seen) -> None:
    press(seen, "/", *"ping", "Enter")
    expect(seen.page.locator("h1")).to_have_text("ping")
    press(seen, "Control+Enter")

    expect(seen.ended()).to_contain_text("pong")


def test_the_tool_list_is_one_stop_and_arrows_move_in_it(seen: Seen) -> None:
    links = seen.page.get_by_role("complementary", name="Tools").get_by_role("link")
    assert links.evaluate_all("all => all.filter(each => each.tabIndex === 0).length") == 1

    press(seen, "/", "Tab")

    expect(links.nth(0)).to_be_focused()
    press(seen, "ArrowDown")
    expect(links.nth(1)).to_be_focused()
    press(seen, "End")
    expect(links.last).to_be_focused()
    press(seen, "ArrowDown", "Home")
    expect(links.nth(0)).to_be_focused()
    press(seen, "ArrowUp")
    expect(seen.page.get_by_label("Search tools")).to_be_focused()


def test_the_form_is_one_tab_away_from_its_tool_in_the_list(seen: Seen) -> None:
    links = seen.page.get_by_role("complementary", name="Tools").get_by_role("link")
    press(seen, "/", "ArrowDown", "ArrowDown", "Enter")
    expect(seen.page.locator("h1")).to_have_text("send")
    expect(links.nth(1)).to_be_focused()

    press(seen, "Tab")

    expect(seen.page.get_by_label("title")).to_be_focused()
    # What lies between is behind it, in the other direction.
    press(seen, "Shift+Tab", "Shift+Tab")
    expect(seen.page.get_by_role("tab", name="Form", exact=True)).to_be_focused()


def test_the_tab_key_goes_to_run_where_a_tool_takes_nothing(seen: Seen) -> None:
    press(seen, "/")
    seen.page.keyboard.type("ping")
    press(seen, "Enter")
    expect(seen.page.locator("h1")).to_have_text("ping")

    press(seen, "Tab")

    expect(seen.page.get_by_role("button", name="Run").first).to_be_focused()


def test_the_palette_reaches_every_view_and_every_tool(seen: Seen) -> None:
    for view in VIEWS[1:]:
        palette(seen, f"{view} view")
        expect(seen.page.get_by_role("heading", level=1)).to_contain_text(view)
    for tool in ("greet", "send", "chatter", "reaches", "ping"):
        palette(seen, f"{tool} tool")
        expect(seen.page.locator("h1")).to_have_text(tool)


def test_the_palette_reaches_saved_requests_and_past_calls(seen: Seen) -> None:
    seen.tool("greet")
    seen.write('{"name": "Grace"}')
    seen.run()
    seen.page.get_by_role("main").get_by_role("button", name="Save", exact=True).click()
    form = seen.page.get_by_role("group", name="Save this request")
    form.get_by_label("Name").fill("Greeting of Grace")
    form.get_by_role("button", name="Save", exact=True).click()

    palette(seen, "greet call")

    expect(seen.page.locator("nav a[aria-current=page]")).to_have_text("History")
    expect(seen.page.get_by_role("main")).to_contain_text("Hello, Grace.")
    palette(seen, "greeting saved")
    expect(seen.page.get_by_label("Arguments as JSON")).to_have_value('{\n  "name": "Grace"\n}')


def test_the_palette_changes_the_theme(seen: Seen) -> None:
    seen.page.get_by_role("link", name="History").focus()
    palette(seen, "dark theme")
    # The focus is where it was, and not nowhere.
    expect(seen.page.get_by_role("link", name="History")).to_be_focused()
    assert seen.page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_palette_finds_prompts_and_resources_not_yet_listed(seen: Seen) -> None:
    palette(seen, "summary prompt")
    expect(seen.page.get_by_role("heading", name="summary")).to_be_visible()

    palette(seen, "towns resource")

    expect(seen.page.get_by_role("region", name="Content")).to_contain_text("Ulm")


def test_palette_cancels_a_running_call(seen: Seen) -> None:
    seen.tool("wait")
    seen.page.get_by_role("button", name="Run").first.click()
    expect(seen.call).to_contain_text("Running")

    palette(seen, "cancel wait")

    seen.ended("cancelled")


def test_reduced_motion_stops_all_animation(seen: Seen) -> None:
    seen.tool("chatter")
    seen.run()

    moving = seen.page.evaluate(
        "() => [...document.querySelectorAll('*')].filter(each => { const style = getComputedStyle(each);"
        "return style.transitionDuration.split(', ').some(part => part !== '0s')"
        " || style.animationName !== 'none' || style.scrollBehavior === 'smooth'; }).length"
    )

    assert moving == 0
    seen.page.set_viewport_size({"width": 390, "height": 700})
    seen.page.evaluate("scrollTo(0, 0)")
    seen.page.evaluate(
        "() => { const into = Element.prototype.scrollIntoView; window.how = [];"
        "Element.prototype.scrollIntoView = function (given) {"
        " window.how.push(given?.behavior ?? 'auto'); return into.call(this, given); }; }"
    )
    press(seen, "Control+Enter")
    seen.ended()
    assert "smooth" not in seen.page.evaluate("window.how")
