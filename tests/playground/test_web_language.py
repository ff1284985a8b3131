"""The page in German: chosen by the browser or by hand, whole at every width, and clean for readers.

Source: `docs/playground.md`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playground_support import Shown
from web_support import Seen, browsing, expect, faults

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]

TOOLS = Path(__file__).with_name("design_tools.py")
TITLES = {
    "prompts": "Prompts",
    "resources": "Ressourcen",
    "files": "Meine Dateien",
    "saved": "Gespeichert",
    "history": "Verlauf",
    "messages": "Nachrichten",
    "session": "Sitzung:",
    "servers": "Server",
    "oauth": "OAuth, Schritt für Schritt",
}
# What is cut or reaches over the side of the page; code and strips that are scrolled are not meant.
CUT = """() => [
  ...(document.documentElement.scrollWidth > innerWidth ? ['the page is wider than the screen'] : []),
  ...[...document.querySelectorAll('button, h1, h2, h3, label, summary, th, dt, .hint, .badge')]
    .filter(each => each.offsetParent !== null)
    .filter(each => each.closest('.scroll, pre, nav, [role=tablist], .clip, .unseen, .strip') === null)
    .filter(each => each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).display !== 'inline'
      || each.getBoundingClientRect().right > innerWidth + 1)
    .map(each => each.outerHTML.slice(0, 120))]"""


@pytest.fixture(scope="module")
def opened(start: Callable[..., Shown]) -> Iterator[Callable[..., Seen]]:
    with browsing(start("dev", tools=TOOLS)) as opening:
        yield opening


@pytest.fixture
def german(opened: Callable[..., Seen]) -> Iterator[Seen]:
    seen = opened(locale="de-DE", views="Ansichten", reduced_motion="reduce")
    expect(seen.page.get_by_role("complementary", name="Tools").get_by_role("link")).to_have_count(6)
    yield seen
    seen.page.context.close()
    assert seen.troubles == []


def run(seen: Seen, tool: str, end: str) -> None:
    seen.tool(tool)
    seen.page.get_by_role("button", name="Ausführen").first.click()
    status = seen.page.get_by_role("region", name="Aufruf").get_by_role("status").last
    expect(status).to_have_text(f"Der Aufruf ist {end}")


def check(seen: Seen, state: str, read: bool = True) -> None:
    """Find what is cut at 390 pixels, and faults for readers; colours are those of the page in English."""
    seen.page.set_viewport_size({"width": 390, "height": 900})
    assert (state, seen.page.evaluate(CUT), faults(seen) if read else []) == (state, [], [])
    seen.page.set_viewport_size({"width": 1280, "height": 720})


@pytest.mark.parametrize("view", TITLES)
def test_a_german_browser_gets_each_view_in_german(german: Seen, view: str) -> None:
    german.go(view)
    main = german.page.get_by_role("main")

    expect(main.get_by_role("heading", level=1)).to_contain_text(TITLES[view])
    expect(main).not_to_contain_text("Wird geladen")
    expect(german.page.locator("html")).to_have_attribute("lang", "de")
    check(german, view)


def test_a_result_and_an_error_are_told_in_german(german: Seen) -> None:
    run(german, "ping", "fertig")
    tabs = german.page.get_by_role("tablist", name="Ergebnis").get_by_role("tab")
    assert tabs.all_inner_texts()[:2] == ["Ergebnis", "Modellsicht"]
    for at in range(tabs.count()):
        tabs.nth(at).click()
        check(german, f"ping: {tabs.nth(at).inner_text()}", read=at == 0)

    german.tool("send")
    german.page.get_by_role("button", name="Ausführen").first.click()
    expect(german.page.get_by_role("alert").first).to_contain_text("die Angabe ist erforderlich")
    check(german, "stopped", read=False)
    german.page.get_by_role("tab", name="JSON", exact=True).click()
    german.page.get_by_label("Argumente als JSON").fill("{}")
    german.page.get_by_role("button", name="Ausführen").first.click()
    expect(german.page.get_by_role("heading", name="Was helfen kann")).to_be_visible()
    check(german, "refused by the server")

    german.go("history")
    expect(german.page.get_by_role("columnheader", name="Dauer")).to_be_visible()
    expect(german.page.get_by_role("row").filter(has_text="ping")).to_contain_text("fertig")
    check(german, "history", read=False)


def test_a_language_chosen_by_hand_is_spoken_at_once_and_lasts(opened: Callable[..., Seen]) -> None:
    seen = opened(locale="en-GB")
    page = seen.page
    seen.tool("send")
    seen.write('{"to": ')

    page.get_by_role("combobox", name="Language").select_option("Deutsch")

    expect(page.locator("html")).to_have_attribute("lang", "de")
    expect(page.get_by_label("Argumente als JSON")).to_have_value('{"to": ')
    page.reload()
    expect(page.get_by_role("navigation", name="Ansichten")).to_be_visible()
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Gehe zu").fill("Sprache Browser")
    page.keyboard.press("Enter")
    expect(page.get_by_role("navigation", name="Views")).to_be_visible()
    expect(page.locator("html")).to_have_attribute("lang", "en")
    page.reload()
    expect(page.get_by_role("navigation", name="Views")).to_be_visible()
    page.context.close()
    assert seen.troubles == []


def test_a_browser_of_a_language_that_is_not_there_gets_its_next_one(opened: Callable[..., Seen]) -> None:
    seen = opened(locale="fr-FR")
    assert seen.page.locator("html").get_attribute("lang") == "en"
    seen.page.context.close()


def test_nothing_is_seen_in_english_before_the_german_is_there(opened: Callable[..., Seen]) -> None:
    seen = opened(locale="de-DE", views="Ansichten")
    page = seen.page
    page.add_init_script(
        "window.read = []; new MutationObserver(() => window.read.push(document.body?.innerText ?? ''))"
        ".observe(document, {childList: true, subtree: true, characterData: true})"
    )
    page.reload()
    expect(page.get_by_role("navigation", name="Ansichten")).to_be_visible()

    shown = page.evaluate("window.read")
    assert any("Meine Dateien" in text for text in shown)
    assert [text for text in shown if "My Files" in text or "Connecting" in text] == []
    page.context.close()
