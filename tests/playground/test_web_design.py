"""Layout at three widths: nothing leaves its place, and every stop names the next step.

Source: `docs/widgets.md`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playground_support import Shown
from playwright.sync_api import Route
from support import until
from web_support import VIEWS, Seen, browsing, expect, faults

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]

TOOLS = Path(__file__).with_name("design_tools.py")
WIDTHS = (1440, 820, 390)

OUTSIDE = """() => {
  const card = document.querySelector('section[aria-label=Call]').getBoundingClientRect();
  const parts = 'section[aria-label=Call] :is([role=tabpanel], .logs, .logs li span, .body)';
  return [...document.querySelectorAll(parts)]
    .map(each => each.getBoundingClientRect()).filter(box => box.width > 0)
    .filter(box => box.left < card.left - 1 || box.right > card.right + 1).length; }"""

NETWORK = "Start the runner with it, or give the tool its data as a file."
ADVICE = {
    "192.0.2.7": f"Copy--allow-net=192.0.2.7:8443 {NETWORK}",
    "data.example": f"Copy--allow-net=data.example:443 {NETWORK}",
    "/usr/bin/env": "Tools run only programs that the operator's settings name; call a library instead.",
    "/srv/reports": "Copy--allow-write=/srv/reports Start the runner with it, or use the tool's home.",
    "/dev/toolcell": "Nothing allows this place.",
    "/etc/toolcell": "Use the tool's home, or give the tool the file as an argument.",
}
"""Texts of the page for each denial of `reaches`, by kind."""
UNIX = "Copy--allow-sockets Processes of the tool then reach each other, and nobody else."
SOCKETS = (
    "Start the runner with --allow-sockets: processes of the tool then reach each other by sockets in its "
    "home, and nobody else (tier `namespace`)"
)
"""Of a socket it says so where the tool ended without one."""

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
    with browsing(start("dev", tools=TOOLS, config="allow_run = []\n")) as opening:
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
    requests: list[str] = []
    seen.page.on("request", lambda each: requests.append(str("tools/call" in (each.post_data or ""))))
    seen.tool("send")

    seen.page.get_by_role("button", name="Run").first.click()

    title = seen.page.get_by_label("title")
    expect(title).to_be_focused()
    expect(title).to_have_attribute("aria-invalid", "true")
    expect(seen.page.get_by_role("alert").first).to_contain_text("title: required")
    title.fill("A letter")
    seen.page.keyboard.press("Control+Enter")
    expect(seen.page.get_by_label("town")).to_be_focused()
    assert "True" not in requests
    seen.page.get_by_label("town").fill("Ulm")
    # No value is a value of this one: it has been chosen for it.
    assert "A letter to Ulm" in seen.run().inner_text()
    assert requests.count("True") == 1
    # Emptied again it stops again.
    title.fill("")
    seen.page.keyboard.press("Control+Enter")
    expect(title).to_be_focused()
    assert requests.count("True") == 1


def test_json_argument_is_sent_unchanged(seen: Seen) -> None:
    seen.tool("send")
    seen.write("{}")

    expect(seen.run("failed")).to_contain_text("What to try")


def test_form_labels_required_optional_and_no_value(seen: Seen) -> None:
    seen.tool("send")
    form = seen.page.get_by_role("region", name="Arguments")

    expect(form.locator(".field", has=seen.page.get_by_label("title")).first).to_contain_text("Required")
    note = form.locator(".field", has=seen.page.get_by_label("note")).last
    expect(note).to_contain_text("Optional")
    nothing = note.get_by_role("button", name="Send null")
    expect(nothing).to_have_attribute("aria-pressed", "true")
    expect(seen.page.get_by_label("note")).to_have_attribute("placeholder", "null")
    nothing.click()
    expect(nothing).to_have_attribute("aria-pressed", "false")


def test_each_denial_has_matching_advice(seen: Seen) -> None:
    seen.tool("reaches")
    seen.run()

    panel = seen.tab("Sandbox")
    row = panel.get_by_role("row")

    for tried, advice in ADVICE.items():
        expect(row.filter(has_text=tried).first.get_by_role("cell").last).to_have_text(advice)
    seen.write('{"family": "AF_UNIX"}')
    seen.run("failed")
    row = seen.tab("Sandbox").get_by_role("row")
    expect(row.filter(has_text="AF_UNIX").get_by_role("cell").last).to_have_text(UNIX)
    # Once, and nothing of hosts.
    what_to_try = seen.tab("Result").get_by_role("alert").locator("p").last
    expect(what_to_try).to_have_text(SOCKETS)
    # Those that nobody may have are told of as such, in both places.
    seen.write('{"family": "AF_UNIX", "kind": "SOCK_DGRAM"}')
    seen.run("failed")
    row = seen.tab("Sandbox").get_by_role("row").filter(has_text="SOCK_DGRAM")
    expect(row.get_by_role("cell").last).to_have_text("Nothing allows sockets of this kind; use TCP.")
    seen.tab("Result")
    expect(what_to_try).to_have_text("Use TCP connections; names are looked up by the host, without UDP")


@pytest.mark.parametrize("width", [1440, 1280, 390])
def test_every_form_of_an_export_is_in_sight(seen: Seen, width: int) -> None:
    wide(seen, width)
    seen.tool("greet")
    seen.write('{"name": "Ada"}')
    seen.run()
    seen.go("history")
    seen.page.get_by_role("table", name="Calls").get_by_role("link", name="greet", exact=True).first.click()

    forms = seen.page.get_by_role("tablist", name="Forms")

    expect(forms.get_by_role("tab")).to_have_count(4)
    assert forms.evaluate("list => list.scrollWidth - list.clientWidth") <= 0


def test_result_scrolls_into_view_after_run_on_narrow_screen(seen: Seen) -> None:
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

    assert until(is_in_sight)
    # The answer itself. Its tab is not pressed: to press one brings it into sight, as the page moves.
    answer = seen.call.get_by_role("tabpanel", name="Result").locator("pre").first
    expect(answer).to_contain_text("A letter to Ulm")
    expect(answer).to_be_in_viewport(ratio=1)


@pytest.mark.parametrize("width", WIDTHS)
def test_save_request_form_has_a_field_and_two_buttons(seen: Seen, width: int) -> None:
    wide(seen, width)
    seen.tool("ping")
    card = seen.page.locator("section.arguments")
    card.get_by_role("button", name="Save", exact=True).click()
    form = card.locator(".save")
    expect(form.get_by_role("textbox")).to_have_count(1)

    run = card.locator(".button.main").bounding_box()
    boxes = form.evaluate(
        "each => [...each.querySelectorAll('input, button')]"
        ".map(part => part.getBoundingClientRect().toJSON())"
    )
    whole = card.bounding_box()

    assert run is not None
    assert whole is not None
    name, keep, cancel = boxes
    assert name["y"] >= run["y"] + run["height"]
    assert keep["y"] == cancel["y"] >= run["y"] + run["height"]
    for box in boxes:
        assert whole["x"] < box["left"]
        assert box["right"] < whole["x"] + whole["width"]


def test_page_without_server_contact_shows_connecting(seen: Seen) -> None:
    held: list[Route] = []
    seen.page.route("**/play/info", lambda each: held.append(each))
    with seen.page.expect_request("**/play/info"):
        seen.page.reload(wait_until="commit")

    status = seen.page.get_by_role("status")
    expect(status).to_have_text("Connecting…")
    held.pop().continue_()

    expect(seen.page.get_by_role("navigation", name="Views")).to_be_visible()
    expect(status.filter(has_text="Connecting")).to_have_count(0)


def test_failed_page_part_is_reloaded_by_button(seen: Seen) -> None:
    parts = "**/play/assets/session-*.js"
    seen.page.route(parts, lambda each: each.abort())
    seen.go("session")
    gone = seen.page.get_by_role("main").get_by_role("alert")
    expect(gone).to_contain_text("This part of the page could not be loaded")
    assert faults(seen) == []

    gone.get_by_role("button", name="Try again").click()
    expect(gone).to_be_visible()
    seen.page.unroute(parts)
    gone.get_by_role("button", name="Try again").click()

    expect(seen.page.get_by_role("heading", level=1)).to_contain_text("Connection: looks")
    expect(gone).to_have_count(0)


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


@pytest.mark.parametrize("width", [820, 1280])
def test_all_parts_of_a_result_stand_in_one_row(seen: Seen, width: int) -> None:
    wide(seen, width)
    seen.tool("chatter")
    seen.run()

    for name in ("Result", "Model view", "Timing", "Sandbox", "Log 400", "Messages"):
        expect(seen.call.get_by_role("tab", name=name)).to_be_in_viewport(ratio=1)


def test_search_stays_visible_when_tool_list_scrolls(seen: Seen) -> None:
    seen.page.set_viewport_size({"width": 1280, "height": 420})
    seen.tool("ping")
    expect(
        seen.page.get_by_role("complementary", name="Tools").locator("a[aria-current=page]")
    ).to_be_in_viewport()

    assert seen.page.locator(".side .inner").evaluate("each => each.scrollTop") > 40
    expect(seen.page.get_by_label("Search tools")).to_be_in_viewport(ratio=1)


@pytest.mark.parametrize("width", [820, 1280])
def test_call_actions_stay_visible_beside_long_arguments(seen: Seen, width: int) -> None:
    wide(seen, width)
    seen.tool("greet")
    seen.write('{"name": "' + "Grace and " * 40 + '"}')
    seen.run()
    seen.go("history")

    row = seen.page.get_by_role("table", name="Calls").get_by_role("row").nth(1)
    expect(row.get_by_role("link", name="Edit")).to_be_in_viewport(ratio=1)
    expect(seen.page.get_by_role("columnheader", name="Status")).to_be_visible()


def test_lost_server_is_named_and_retried(seen: Seen) -> None:
    seen.tool("ping")
    seen.page.context.set_offline(True)
    seen.page.get_by_role("button", name="Run").first.click()

    gone = seen.page.get_by_role("alert").filter(has_text="Can't reach")
    expect(gone).to_contain_text("Can't reach looks")
    gone.get_by_role("button", name="Try again").click()
    expect(gone).to_be_visible()
    seen.page.context.set_offline(False)
    gone.get_by_role("button", name="Try again").click()

    expect(gone).to_have_count(0)
    seen.run()
