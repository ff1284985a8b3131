"""Accessibility of running, asking and failed calls, and of files in their viewers: axe finds nothing.

Source: `docs/widgets.md`.
"""

from collections.abc import Callable, Iterator

import pytest
from playground_support import Shown
from web_support import WEB_TOOLS, Seen, browsing, expect, faults, undecided

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]


@pytest.fixture(scope="module")
def gallery(start: Callable[..., Shown]) -> Iterator[Seen]:
    with browsing(start(tools=WEB_TOOLS)) as opening:
        yield opening()


def clean(seen: Seen, state: str) -> None:
    assert (state, faults(seen), undecided(seen)) == (state, [], [])


def test_axe_finds_no_fault_in_running_asking_or_failed_calls(gallery: Seen) -> None:
    seen = gallery
    seen.tool("order")
    clean(seen, "a long form")
    seen.tool("broken")
    seen.run("failed")
    clean(seen, "error")
    seen.tool("ask")
    seen.page.get_by_role("button", name="Run").first.click()
    expect(seen.page.get_by_role("button", name="Answer")).to_be_visible()
    clean(seen, "question")
    seen.page.get_by_role("button", name="Decline").click()
    seen.ended()
    seen.tool("count")
    seen.page.get_by_role("button", name="Run").first.click()
    expect(seen.page.get_by_text("counted 4").first).to_be_visible()
    clean(seen, "running")
    seen.page.get_by_role("button", name="Cancel").first.click()
    seen.ended("cancelled")
    seen.go("history")
    expect(seen.page.locator("table.grid a.mono").first).to_be_visible()
    clean(seen, "history with calls")


def test_no_viewer_of_a_file_has_a_fault(gallery: Seen) -> None:
    seen = gallery
    seen.tool("gallery")
    call = seen.run()
    call.get_by_role("tab", name="Files 12").click()
    tabs = call.get_by_role("tabpanel").first.get_by_role("tab")
    for at in range(tabs.count()):
        tabs.nth(at).click()
        expect(call).not_to_contain_text("Loading…")
        assert (tabs.nth(at).inner_text(), faults(seen)) == (tabs.nth(at).inner_text(), [])
    seen.go("files")
    expect(seen.page.get_by_role("main").get_by_role("heading").first).to_be_visible()
    clean(seen, "files")
