"""Use of the pages: sort, find, open, ask, leaf, choose, by pointer and by keyboard."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from pages_support import METHODS, WIDGETS, Showing, Shown, launched, showing
from pages_support_data import MARKDOWN, SAMPLES, item, pizza, result
from playwright.sync_api import Locator

pytestmark = [pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]

UNITS = [
    "*",
    "_a",
    "[",
    "![",
    "`a",
    "``a` ",
    "> ",
    "- ",
    "[a](",
    "**a*",
    "~~",
    "<http://",
    "| a ",
    "\\",
    "1. ",
    "((",
    "h",
    "***a** ",
    "a_b_",
    "a.@",
    "http://a?!",
    "* a\n  * b\n",
    "\\[",
]


class Opened(Protocol):
    """Show a page beside `window.openai`; it is closed when the test ends."""

    def __call__(self, name: str, output: object, **values: Any) -> Shown: ...


@pytest.fixture(scope="module")
def show() -> Iterator[Showing]:
    with launched() as browser, showing(browser) as ways:
        yield ways


@pytest.fixture
def opened(show: Showing) -> Iterator[Opened]:
    pages: list[Shown] = []

    def open_page(name: str, output: object, **values: Any) -> Shown:
        options = {key: values.pop(key) for key in ("methods", "answers", "before") if key in values}
        pages.append(
            show.openai(name, {"toolOutput": output, "theme": "light", "locale": "en", **values}, **options)
        )
        return pages[-1]

    yield open_page
    for shown in pages:
        shown.page.close()


def column(shown: Shown, number: int) -> list[str]:
    return list(shown.page.locator(f"tbody tr > :nth-child({number})").all_inner_texts())


def button(shown: Shown, name: str) -> Locator:
    return shown.page.get_by_role("button", name=name)


def focused(shown: Shown) -> str:
    return str(shown.page.evaluate("document.activeElement.dataset.key || document.activeElement.tagName"))


# ---- the table

EMPTY = "\u2013\nempty"
PRICES: list[dict[str, Any]] = [
    {"name": "b10", "price": 9},
    {"name": "b9", "price": 10.5},
    {"name": "a", "price": None},
]


def test_a_table_is_sorted_by_keyboard_and_the_focus_stays(opened: Opened) -> None:
    shown = opened("pizzaz-table", {"columns": ["name", "price"], "data": PRICES})
    shown.page.locator("thead button").nth(1).focus()

    orders = []
    for _ in range(3):
        shown.page.keyboard.press("Enter")
        shown.page.wait_for_function("document.activeElement.dataset.key === 'sort:price'")
        orders.append((shown.page.locator("th").nth(1).get_attribute("aria-sort"), column(shown, 1)))

    assert orders == [
        ("ascending", ["b10", "b9", "a"]),
        ("descending", ["b9", "b10", "a"]),
        (None, ["b10", "b9", "a"]),
    ]


def test_texts_are_sorted_as_people_count(opened: Opened) -> None:
    shown = opened("pizzaz-table", {"columns": ["name", "price"], "data": PRICES})

    shown.page.locator("thead button").first.click()

    assert column(shown, 1) == ["a", "b9", "b10"]


def test_numbers_of_a_column_line_up_in_the_readers_language(opened: Opened) -> None:
    rows = [{"n": 1234.5}, {"n": 2}, {"n": None}]

    assert column(opened("pizzaz-table", {"columns": ["n"], "data": rows}), 1) == [
        "1,234.5",
        "2.0",
        EMPTY,
    ]
    assert column(opened("pizzaz-table", {"columns": ["n"], "data": rows}, locale="de-DE"), 1)[0] == "1.234,5"


def test_a_table_finds_rows_while_one_types(opened: Opened) -> None:
    shown = opened("pizzaz-table", {"columns": ["name", "price"], "data": [pizza(n) for n in range(40)]})

    shown.page.get_by_role("searchbox").click()
    shown.page.keyboard.type("dia", delay=1)
    shown.wait_for("5 of 40 rows")

    assert focused(shown) == "find"
    assert all("Diavola" in name for name in column(shown, 1))


def test_table_is_paged_and_shows_its_position(opened: Opened) -> None:
    shown = opened("pizzaz-table", {"columns": ["name"], "data": [pizza(n) for n in range(25)]})

    button(shown, "Next page").click()
    button(shown, "Next page").click()

    assert len(column(shown, 1)) == 5
    assert "Page 3 of 3" in shown.text
    assert button(shown, "Next page").is_disabled()


def test_table_restores_its_state_and_sends_only_order_to_model(opened: Opened) -> None:
    data = {"columns": ["name", "price"], "data": PRICES}
    shown = opened("pizzaz-table", data)

    shown.page.locator("thead button").nth(1).click()
    (state,) = shown.called("setWidgetState")[-1]
    again = opened("pizzaz-table", data, widgetState=state)

    assert state["modelContent"] == "Table sorted by price"
    assert again.page.locator("th").nth(1).get_attribute("aria-sort") == "ascending"


def test_columns_come_from_rows_and_prototype_names_are_plain(opened: Opened) -> None:
    rows = [{"a": 1, "constructor": "c"}, {"a": {"deep": [1]}}]

    shown = opened("pizzaz-table", {"data": rows})

    assert shown.page.locator("thead th").all_inner_texts() == ["a", "constructor"]
    assert column(shown, 2) == ["c", EMPTY]
    assert column(shown, 1)[1] == '{"deep":[1]}'


# ---- search results


def test_result_opens_through_host_and_invalid_address_is_text(opened: Opened) -> None:
    results = [result(0), {"id": 2, "title": "Bad", "url": "javascript:alert(1)"}]
    shown = opened("search-results", {"query": "x", "results": results})

    shown.page.get_by_role("link").first.click()

    assert shown.called("openExternal") == [[{"href": results[0]["url"]}]]
    assert shown.page.get_by_role("link").count() == 1


def test_more_results_load_on_demand_and_first_gets_focus(opened: Opened) -> None:
    shown = opened("search-results", {"query": "x", "results": [result(n) for n in range(12)]})

    button(shown, "Show 5 more").click()
    shown.page.wait_for_function("document.activeElement.dataset.key === 'result:5'")

    assert shown.page.locator("ol.results > li").count() == 10
    assert button(shown, "Show 2 more").is_visible()


def test_host_that_cannot_open_links_is_reported(opened: Opened) -> None:
    shown = opened("search-results", {"query": "x", "results": [result(0)]}, methods=())

    shown.page.get_by_role("link").first.click()

    shown.page.get_by_role("status").get_by_text("openExternal is unavailable").wait_for()


@pytest.mark.parametrize(
    "name", ["search-results", "dashboard-widget", "chat-view", "solar-system", "pizzaz-markdown"]
)
def test_a_card_has_at_most_one_primary_and_one_secondary_action(opened: Opened, name: str) -> None:
    """Source: S3-101, S3-102 and S3-123."""
    shown = opened(name, SAMPLES[name]["most"][0])

    assert shown.page.locator(".button.primary").count() <= 1
    assert shown.page.locator(".button.secondary").count() <= 1


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_card_does_not_scroll_within_itself(opened: Opened, name: str) -> None:
    """Source: S3-103."""
    shown = opened(name, SAMPLES[name]["most"][0])

    scrolling = """[...document.querySelectorAll('body *')].filter(e => e.scrollHeight > e.clientHeight + 1
      && ['auto', 'scroll'].includes(getComputedStyle(e).overflowY)).map(e => e.className)"""
    assert shown.page.evaluate(scrolling) == []


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_pages_have_no_message_input(opened: Opened, name: str) -> None:
    """Source: S3-104, S3-109 and S3-123."""
    shown = opened(name, SAMPLES[name]["one"][0])

    assert shown.page.locator("textarea, [contenteditable], input:not([type=search])").count() == 0


# ---- chat, dashboard


def test_the_message_of_a_chat_is_sent_once(opened: Opened) -> None:
    shown = opened("chat-view", {"seedMessage": "Which wine?"})

    button(shown, "Send this message").click()
    shown.wait_for("Sent: Send this message")

    assert shown.called("sendFollowUpMessage") == [[{"prompt": "Which wine?"}]]
    assert button(shown, "Sent: Send this message").is_disabled()


def test_a_chat_without_a_message_offers_two_ways_to_begin(opened: Opened) -> None:
    """Source: S3-118."""
    shown = opened("chat-view", {"seedMessage": ""})

    button(shown, "Summarise our conversation so far.").click()

    assert shown.called("sendFollowUpMessage") == [[{"prompt": "Summarise our conversation so far."}]]


def test_trend_is_marked_by_more_than_its_colour(opened: Opened) -> None:
    stats = [
        {"label": label, "value": "1", "change": change}
        for label, change in [("a", "+1%"), ("b", "\u22122%"), ("c", "same")]
    ]
    shown = opened("dashboard-widget", {"dashboard": True, "stats": stats})

    changes = shown.page.locator(".change").all_text_contents()

    assert changes == ["up: +1%", "down: \u22122%", "same"]
    assert shown.page.locator(".change svg").count() == 3


# ---- carousel, gallery


def test_carousel_shows_eight_inline_and_all_on_full_screen(opened: Opened) -> None:
    """Source: S3-105 and S3-108."""
    shown = opened("pizzaz-carousel", {"items": [item(n) for n in range(12)]})
    inline = shown.page.locator(".card").count()

    shown.page.evaluate("setGlobals({displayMode: 'fullscreen'})")
    shown.wait_for("12 items")

    assert (inline, shown.page.locator(".card").count()) == (8, 12)


def test_carousel_moves_by_buttons_and_card_has_one_action(opened: Opened) -> None:
    """Source: S3-106 and S3-107."""
    shown = opened("pizzaz-carousel", {"items": [item(n) for n in range(6)]})

    button(shown, "Next").click()
    shown.page.wait_for_function("document.querySelector('.carousel').scrollLeft > 0")
    shown.page.get_by_role("button", name="Diavola").click()

    assert shown.called("sendFollowUpMessage") == [[{"prompt": "Order a Diavola."}]]
    assert max(card.locator("button").count() for card in shown.page.locator(".card").all()) == 1


def test_unloadable_picture_leaves_its_description(opened: Opened) -> None:
    """Source: S3-115."""
    shown = opened(
        "pizzaz-gallery",
        {"images": [{"src": "https://gone.test/a.png", "alt": "The oven", "caption": "Oven"}]},
    )

    shown.page.wait_for_function("document.querySelector('.picture .spoken')")

    text = shown.page.locator("button.tile").text_content()
    assert text is not None
    assert text.startswith("OEnlarge: The oven")


def test_gallery_moves_by_keyboard_and_escape_returns_to_picture(opened: Opened) -> None:
    shown = opened("pizzaz-gallery", SAMPLES["pizzaz-gallery"]["most"][0])

    shown.page.locator("button.tile").nth(1).click()
    shown.page.wait_for_function("document.activeElement.dataset.key === 'close'")
    shown.page.keyboard.press("ArrowRight")
    shown.wait_for("3 / 300")
    shown.page.keyboard.press("Escape")
    shown.page.wait_for_function("document.activeElement.dataset.key === 'tile:2'")

    assert shown.page.locator(".large").count() == 0


# ---- markdown


def test_markdown_becomes_its_elements(opened: Opened) -> None:
    shown = opened("pizzaz-markdown", {"markdown": MARKDOWN}, displayMode="fullscreen")

    once = ("h1", "h2", "ol", "ol ul", "table", "pre", "blockquote", "del", "em", "strong", "hr")
    assert {tag: shown.page.locator(f"article {tag}").count() for tag in once} == dict.fromkeys(once, 1)
    assert shown.page.locator("article img").count() == 0
    links = shown.page.locator("article a").all_text_contents()
    assert links == ["the recipe", "https://example.com", "A plate"]
    assert shown.page.locator("article pre").inner_text().startswith("def bake")


@pytest.mark.parametrize(
    ("source", "html"),
    [
        ("a < b & <b>bold</b>", "a < b & <b>bold</b>"),
        ("***both***", "both"),
        ("snake_case_name and 2*3*4", "snake_case_name and 234"),
        ("\\*not\\* and \\<", "*not* and <"),
        ("`a **b`** c", "a **b** c"),
        ("[x](javascript:alert(1))", "x"),
        ("[x](https://example.com/a_(b))", "x"),
        ("line  \nbreak", "line\nbreak"),
        ("see https://example.com/a.", "see https://example.com/a."),
        ("a\u202eb", "a⟨U+202E⟩b"),
        ("* * *", ""),
    ],
)
def test_invalid_markdown_is_shown_as_text(opened: Opened, source: str, html: str) -> None:
    shown = opened("pizzaz-markdown", {"markdown": source})

    assert shown.page.locator("article").inner_text().strip() == html


def test_markdown_of_any_kind_is_read_in_time() -> None:
    module = WIDGETS / "web" / "markdown" / "markdown.ts"
    script = f"""
      import {{ draw, MOST }} from "{module}";
      const made = (...parts) => parts;
      const names = ["element", "text", "code", "link", "picture", "table", "task"];
      const maker = Object.fromEntries(names.map((name) => [name, made]));
      const wide = ["|a", "|-", "|\\n"].map((part) => part.repeat(MOST / 9)).join("\\n");
      const units = {json.dumps(UNITS)}.flatMap((unit) => [unit, unit + "\\n"]);
      for (const unit of [...units, wide])
        draw(unit.repeat(Math.ceil(MOST / unit.length)).slice(0, MOST), 0, maker);
      console.log("read");
    """
    node = [
        str(Path(sys.executable).parent / "node"),
        "--no-warnings",
        "--input-type=module",
        "--eval",
        script,
    ]

    # Seconds if time grows with the length; hours if with its square.
    done = subprocess.run(node, capture_output=True, text=True, timeout=90)

    assert (done.stdout, done.stderr) == ("read\n", "")


@pytest.mark.parametrize("unit", ["`a` ", "*a* ", "- a\n", "| a | b |\n|--|--|\n"])
def test_document_of_too_many_elements_is_cut_with_a_note(opened: Opened, unit: str) -> None:
    shown = opened("pizzaz-markdown", {"markdown": unit * 12_000}, displayMode="fullscreen")

    shown.wait_for("too long to show all of it")

    assert shown.page.locator("article *").count() < 20_000


def test_long_document_opens_full_screen_or_unfolds_without_it(opened: Opened) -> None:
    """Source: S3-108 and S3-123."""
    data = {"markdown": MARKDOWN * 20}
    wide = opened("pizzaz-markdown", data, answers={"requestDisplayMode": {"mode": "fullscreen"}})
    narrow = opened(
        "pizzaz-markdown", data, methods=[name for name in METHODS if name != "requestDisplayMode"]
    )

    button(wide, "Read more").click()
    button(narrow, "Read more").click()

    assert wide.called("requestDisplayMode") == [[{"mode": "fullscreen"}]]
    narrow.page.wait_for_function("document.querySelectorAll('article table').length === 20")


# ---- solar system, kitchen sink


def test_a_planet_is_chosen_and_asked_about(opened: Opened) -> None:
    shown = opened("solar-system", {})

    button(shown, "Saturn").click()
    shown.wait_for("274")
    button(shown, "Ask about Saturn").click()

    assert shown.called("sendFollowUpMessage") == [[{"prompt": "Tell me more about Saturn."}]]
    assert shown.called("setWidgetState")[-1] == [{"modelContent": {"planet": "Saturn"}}]
    assert button(shown, "Saturn").first.get_attribute("aria-pressed") == "true"


CALM = "const real = matchMedia; window.matchMedia = q => ({...real(q), matches: /reduced-motion/.test(q)});"
MOVED = """() => new Promise(done => {
  const place = () => document.querySelector('g.planet').getAttribute('transform');
  const first = place();
  let frames = 0;
  const look = () =>
    place() !== first ? done(true) : ++frames > 30 ? done(false) : requestAnimationFrame(look);
  look();
})"""


def test_planets_stand_still_with_reduced_motion(opened: Opened) -> None:
    moving = opened("solar-system", {})
    moves = moving.page.evaluate(MOVED)
    still = opened("solar-system", {}, before=CALM)

    assert moves
    assert not still.page.evaluate(MOVED)
    assert button(still, "Play").is_visible()


def test_picture_in_picture_has_one_control(opened: Opened) -> None:
    """Source: S3-110."""
    shown = opened("solar-system", {"planet": "Mars"}, displayMode="pip")

    assert shown.page.get_by_role("button").all_inner_texts() == [""]
    assert button(shown, "Pause").is_visible()


def test_kitchen_sink_tries_every_method_and_shows_outcome(opened: Opened) -> None:
    shown = opened(
        "kitchen-sink-lite",
        {"demo": True},
        answers={"uploadFile": {"fileId": "f9"}, "callTool": {"throws": "no tools here"}},
    )

    for method in METHODS:
        shown.page.get_by_label("Try a method of the bridge").select_option(method)
        button(shown, "Run").click()
        shown.page.locator("ol.trials > li:first-child code", has_text=method).wait_for()

    assert {call[0] for call in shown.calls} == set(METHODS)
    assert "1,234,567.89" in shown.text


def test_kitchen_sink_shows_cause_of_failed_method(opened: Opened) -> None:
    shown = opened("kitchen-sink-lite", {"demo": True}, methods=())

    shown.page.get_by_label("Try a method of the bridge").select_option("uploadFile")
    button(shown, "Run").click()

    shown.wait_for("uploadFile is unavailable: this host does not offer it")
