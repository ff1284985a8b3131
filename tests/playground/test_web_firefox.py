"""The page in Firefox: into it, through its views, a call by keys, files in their viewers, a widget.

Source: `docs/widgets.md`.
"""

import json
from collections.abc import Callable, Iterator

import pytest
from firefox import Firefox, firefox
from playground_support import Shown
from web_support import AXE, VIEWS, WEB_TOOLS

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]

CALL = "document.querySelector('section[aria-label=Call]')"


@pytest.fixture(scope="module")
def page(start: Callable[..., Shown]) -> Iterator[Firefox]:
    shown = start("dev", tools=WEB_TOOLS)
    with firefox() as window:
        window.go(f"{shown.base}/?key={shown.key}")
        window.until("document.querySelector('nav a')")
        yield window


def go(page: Firefox, route: str) -> None:
    page.value(f"location.hash = {json.dumps(route)}")
    page.until(f"location.hash.startsWith({json.dumps(route.split('?')[0])})")


def ended(page: Firefox, word: str = "done") -> None:
    page.until(f"{CALL}?.innerText.includes('Call {word}')")


def test_each_view_is_shown_and_axe_finds_nothing_in_it(page: Firefox) -> None:
    page.value(f"new Promise(done => {{ {AXE.read_text()}; done(1); }})")
    for view in VIEWS:
        go(page, f"#/{view}")
        page.until("document.querySelector('main h1')")
        page.until("!document.querySelector('main').innerText.includes('Loading')")
        found = page.value(
            "window.axe.run(document, {iframes: false, resultTypes: ['violations']})"
            ".then(result => result.violations.map(each => each.id + ' ' + each.nodes[0].html.slice(0, 200)))"
        )
        assert (view, found) == (view, [])
    assert page.troubles == []


def test_a_call_is_made_by_keys_and_ends(page: Firefox) -> None:
    go(page, "#/call/order")
    page.until("document.querySelector('h1')?.innerText === 'order'")
    page.press("Control+k", *"echo", "Enter")
    page.until("document.querySelector('h1')?.innerText === 'echo'")
    page.press("Control+Enter")

    ended(page)
    page.press("Control+k", *"history", "Enter")
    page.until("document.querySelector('table')?.innerText.includes('echo')")
    assert page.troubles == []


def test_files_are_shown_by_the_viewers_of_their_kinds(page: Firefox) -> None:
    go(page, "#/call/gallery")
    page.until("document.querySelector('h1')?.innerText === 'gallery'")
    page.press("Control+Enter")
    ended(page)

    files = page.value(f"{CALL}.querySelectorAll('[role=tablist][aria-label=Files] [role=tab]').length")
    assert files > 3
    for at in range(files):
        tab = f"{CALL}.querySelectorAll('[role=tablist][aria-label=Files] [role=tab]')[{at}]"
        page.value(f"{tab}.click()")
        page.until(f"{tab}.ariaSelected === 'true' || {tab}.getAttribute('aria-selected') === 'true'")
        viewer = f"{CALL}.querySelector('.viewer')"
        page.until(f"{viewer} && {viewer}.innerHTML !== '' && !{viewer}.innerText.includes('Loading')")
        assert page.value(f"{viewer}.querySelector('[role=alert]')?.innerText") is None
    assert page.troubles == []
