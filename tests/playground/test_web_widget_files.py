"""Files and modals of widgets in the Playground's host, in both dialects.

Source: requirements S3-129, S3-130, S3-132; MCP Apps 2026-01-26.
"""

import json
import re
from collections.abc import Callable, Iterator

import pytest
from playground_support import Shown
from playwright.sync_api import Frame
from support import SAMPLES
from web_support import Seen, browsing, expect, faults

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]

DIALECTS = pytest.mark.parametrize("dialect", ["MCP Apps", "ChatGPT Apps"])
TABLE = {"columns": ["town", "people"], "rows": [{"town": "Ulm", "people": 126_000}], "title": "Towns"}
UPLOAD = """() => { window.ended = false;
  window.came = openai.uploadFile(new File(["hello"], "from widget.txt", {type: "text/plain"}))
    .then(({fileId}) => fileId, error => "refused: " + error.message)
    .finally(() => { window.ended = true; }); }"""
# Nothing is evaluated from a text in a widget: its policy forbids that.
IS_MODAL = """() => new Promise(done => {
  const look = () => openai.view.mode === "modal" ? done(openai.view) : setTimeout(look, 20);
  look();
})"""


@pytest.fixture(scope="module")
def opened(start: Callable[..., Shown]) -> Iterator[Callable[..., Seen]]:
    with browsing(start(tools=SAMPLES / "chatui.py")) as opening:
        yield opening


@pytest.fixture
def seen(opened: Callable[..., Seen]) -> Iterator[Seen]:
    """A page that shows the table widget."""
    seen = opened(accept_downloads=True)
    seen.tool("display_table")
    seen.write(json.dumps(TABLE))
    seen.run()
    yield seen
    seen.page.context.close()


def widget(seen: Seen, dialect: str) -> Frame:
    """Return the frame in which the widget runs, in the host of a dialect."""
    seen.page.get_by_label("Dialect").select_option(label=dialect)
    return inside(seen, ".stage iframe")


def inside(seen: Seen, place: str) -> Frame:
    inner = seen.page.frame_locator(place).frame_locator("iframe")
    expect(inner.get_by_text("Ulm")).to_be_visible()
    handle = inner.locator("html").element_handle()
    frame = handle.owner_frame()
    assert frame is not None
    return frame


def uploaded(seen: Seen, dialect: str) -> tuple[Frame, str]:
    """Let the widget give a file, say yes, and return the widget's frame and the file's id."""
    frame = widget(seen, dialect)
    frame.evaluate(UPLOAD)
    expect(seen.page.locator(".question")).to_contain_text("wants to keep from widget.txt, 5 B, in My Files")
    assert frame.evaluate("window.ended") is False
    seen.page.get_by_role("button", name="Keep it", exact=True).click()
    return frame, str(frame.evaluate("window.came"))


@DIALECTS
def test_widget_file_is_stored_after_consent(seen: Seen, dialect: str) -> None:
    _frame, key = uploaded(seen, dialect)

    listed = seen.page.evaluate("fetch('/api/files').then(answer => answer.json())")["files"]
    mine = next(file for file in listed if file["key"] == key)
    assert (mine["size"], mine["content_type"], mine["origin"]) == (5, "text/plain", "uploaded")
    assert mine["filename"].startswith("from widget")


@DIALECTS
def test_file_refused_by_person_is_not_stored_and_widget_knows(seen: Seen, dialect: str) -> None:
    before = seen.page.evaluate("fetch('/api/files').then(answer => answer.json())")["files"]
    frame = widget(seen, dialect)
    frame.evaluate(UPLOAD)

    seen.page.get_by_role("button", name="Do not keep it").click()

    assert "did not want this file kept" in str(frame.evaluate("window.came"))
    assert seen.page.evaluate("fetch('/api/files').then(answer => answer.json())")["files"] == before


@DIALECTS
def test_widget_gets_download_address_for_its_own_file_only(seen: Seen, dialect: str) -> None:
    frame, key = uploaded(seen, dialect)

    address = frame.evaluate(f"openai.getFileDownloadUrl({{fileId: {json.dumps(key)}}})")["downloadUrl"]
    other = frame.evaluate(
        "openai.getFileDownloadUrl({fileId: 'art_0123456789ab'}).catch(error => error.message)"
    )

    # The address alone suffices for the file: it needs no cookie.
    with seen.shown.browser() as browser:
        assert browser.get(address).content == b"hello"
    assert "there is no file art_0123456789ab of this widget" in other
    frame.evaluate("address => { openai.openExternal({href: address}); }", address)
    expect(seen.page.get_by_role("button", name="Open", exact=True)).to_be_enabled()


@DIALECTS
def test_modal_shows_widget_above_page_with_its_parameters(seen: Seen, dialect: str) -> None:
    frame = widget(seen, dialect)

    frame.evaluate("openai.requestModal({title: 'All towns', params: {town: 'Ulm'}})")

    dialog = seen.page.get_by_role("dialog", name="All towns")
    expect(dialog).to_be_visible()
    modal = inside(seen, "dialog iframe")
    assert modal.evaluate(IS_MODAL) == {"mode": "modal", "params": {"town": "Ulm"}}
    assert frame.evaluate("openai.view.mode") == "inline"
    assert faults(seen) == []
    modal.evaluate("openai.requestClose()")
    expect(dialog).to_be_hidden()
    expect(seen.page.locator(".stage iframe")).to_be_visible()


def test_escape_closes_modal_and_leaves_widget_full_screen(seen: Seen) -> None:
    frame = widget(seen, "MCP Apps")
    stage = seen.page.locator(".stage")

    frame.evaluate("openai.requestDisplayMode({mode: 'fullscreen'})")
    expect(stage).to_have_class(re.compile("fullscreen"))
    frame.evaluate("openai.requestModal({title: 'All towns'})")
    dialog = seen.page.get_by_role("dialog", name="All towns")
    dialog.get_by_role("button", name="Close").focus()
    # What opened last closes first, and alone.
    seen.page.keyboard.press("Control+k")
    palette = seen.page.get_by_role("combobox", name="Go to a tool")
    expect(palette).to_be_focused()
    seen.page.keyboard.press("Escape")
    expect(palette).to_have_count(0)
    expect(dialog).to_be_visible()
    seen.page.keyboard.press("Escape")

    expect(dialog).to_have_count(0)
    expect(stage).to_have_class(re.compile("fullscreen"))
    seen.page.get_by_role("button", name="Leave fullscreen").focus()
    seen.page.keyboard.press("Escape")
    expect(stage).to_have_class(re.compile("inline"))


def test_each_of_two_quick_escapes_closes_a_layer(seen: Seen) -> None:
    frame = widget(seen, "MCP Apps")
    frame.evaluate("openai.requestModal({title: 'All towns'})")
    dialog = seen.page.get_by_role("dialog", name="All towns")
    expect(dialog).to_be_visible()
    seen.page.keyboard.press("Control+k")
    palette = seen.page.get_by_role("combobox", name="Go to a tool")
    expect(palette).to_be_focused()

    # The second comes before the browser has told that the first dialog is closed.
    seen.page.evaluate("""async () => {
      for (let pressed = 0; pressed < 2; pressed += 1) {
        const key = {key: "Escape", bubbles: true, cancelable: true};
        document.dispatchEvent(new KeyboardEvent("keydown", key));
        for (let turn = 0; turn < 100; turn += 1) await undefined;
      }
    }""")

    expect(palette).to_have_count(0)
    expect(dialog).to_have_count(0)
