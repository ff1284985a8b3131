"""Accessibility of the page: axe finds nothing in any view and state, and all contrasts are decided.

Source: `docs/widgets.md`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playground_support import Shown
from web_support import VIEWS, Seen, browsing, expect, faults, undecided

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm]

TOOLS = Path(__file__).with_name("design_tools.py")


@pytest.fixture(scope="module")
def opened(start: Callable[..., Shown]) -> Iterator[Callable[..., Seen]]:
    with browsing(start("dev", tools=TOOLS)) as opening:
        yield opening


@pytest.fixture
def seen(opened: Callable[..., Seen]) -> Iterator[Seen]:
    seen = opened()
    yield seen
    seen.page.context.close()


def clean(seen: Seen, state: str) -> None:
    assert (state, faults(seen), undecided(seen)) == (state, [], [])


@pytest.fixture(scope="module")
def with_file(opened: Callable[..., Seen]) -> Iterator[Seen]:
    """One page for all views, of a user with a file."""
    seen = opened()
    seen.go("files")
    seen.page.locator("input[type=file]").set_input_files(
        {"name": "tide.md", "mimeType": "text/markdown", "buffer": b"# Tide\n\nIt *turns*."}
    )
    expect(seen.page.get_by_role("link", name="tide.md")).to_be_visible()
    yield seen
    seen.page.context.close()


# Not parametrised: `scripts/test` runs one case of such a test, and each view is looked at with every change.
def test_no_view_has_a_fault_on_a_wide_screen(with_file: Seen) -> None:
    look_at_views(with_file, faults, width=1440)


def test_no_view_has_a_fault_on_a_narrow_screen(with_file: Seen) -> None:
    look_at_views(with_file, faults, width=390)


@pytest.mark.release
@pytest.mark.parametrize("width", [1440, 390])
def test_no_view_has_an_undecided_contrast(with_file: Seen, width: int) -> None:
    look_at_views(with_file, undecided, width=width)


def look_at_views(seen: Seen, find: Callable[[Seen], list[str]], *, width: int) -> None:
    main = seen.page.get_by_role("main")
    seen.page.set_viewport_size({"width": width, "height": 900})
    for view in (*VIEWS, "show"):
        if view == "show":
            seen.go("files")
            main.get_by_role("link", name="tide.md").click()
            expect(main.get_by_role("heading", name="Tide", exact=True)).to_be_visible()
        else:
            seen.go(view)
        expect(main.get_by_role("heading").first).to_be_visible()
        expect(main).not_to_contain_text("Loading…")

        assert (view, find(seen)) == (view, [])
        assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view


@pytest.mark.release
def test_no_part_of_a_result_has_a_fault(seen: Seen) -> None:
    for tool in ("ping", "reaches", "chatter"):
        seen.tool(tool)
        call = seen.run()
        tabs = call.get_by_role("tablist", name="Result").get_by_role("tab")
        for at in range(tabs.count()):
            tabs.nth(at).click()
            clean(seen, f"{tool}: {tabs.nth(at).inner_text()}")


@pytest.mark.release
def test_no_state_of_a_form_has_a_fault(seen: Seen) -> None:
    seen.tool("send")
    clean(seen, "blank")
    seen.page.get_by_role("button", name="Run").first.click()
    expect(seen.page.get_by_role("alert").first).to_be_visible()
    clean(seen, "stopped")
    seen.write("{")
    clean(seen, "JSON that cannot be read")
    seen.write("{}")
    seen.run("failed")
    clean(seen, "refused by the server")


@pytest.mark.release
def test_neither_the_palette_nor_a_lost_server_has_a_fault(seen: Seen) -> None:
    seen.page.keyboard.press("Control+k")
    expect(seen.page.get_by_role("listbox").get_by_role("option").first).to_be_visible()
    clean(seen, "palette")
    seen.page.get_by_role("combobox", name="Go to a tool").fill("no such thing at all")
    expect(seen.page.get_by_text("No matches")).to_be_visible()
    clean(seen, "palette without choices")
    seen.page.keyboard.press("Escape")
    seen.tool("ping")
    seen.page.context.set_offline(True)
    seen.page.get_by_role("button", name="Run").first.click()
    expect(seen.page.get_by_role("alert").filter(has_text="Can't reach")).to_be_visible()
    clean(seen, "server gone")
