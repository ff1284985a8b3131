"""Promises of the contract about a result, seen in the Playground: one test for each promise.

Source: requirements S0-68, S1-81, S1-93, S4-80, S4-82, S4-99; `docs/contract.md`.
"""

import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playground_support import Shown, answer, ask
from playwright.sync_api import FrameLocator, Locator
from support import until
from web_support import Seen, browsing, expect, faults

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]

TOOLS = Path(__file__).with_name("contract_tools.py")


@pytest.fixture(scope="module")
def server(start: Callable[..., Shown]) -> Shown:
    return start(tools=TOOLS)


@pytest.fixture(scope="module")
def opened(server: Shown) -> Iterator[Callable[..., Seen]]:
    with browsing(server) as opening:
        yield opening


@pytest.fixture
def seen(opened: Callable[..., Seen]) -> Iterator[Seen]:
    seen = opened(accept_downloads=True)
    yield seen
    seen.page.context.close()


def called(seen: Seen, tool: str) -> Any:
    """Call a tool without arguments and return where its call is shown."""
    seen.tool(tool)
    return seen.run()


def test_a_notification_is_shown_with_its_result(seen: Seen) -> None:
    call = called(seen, "announced")

    expect(call.locator(".notice")).to_have_text("Your report is stored.")


def test_deferred_file_shows_its_reason_and_next_steps(seen: Seen) -> None:
    called(seen, "drafted")

    panel = seen.tab("Files 1")
    expect(panel.locator(".notice")).to_contain_text("Kept for later: awaiting approval.")
    expect(panel.locator(".notice li")).to_have_text(["Ask the team", "Send it to print"])


def test_viewer_hints_apply_when_viewer_can_show_the_file(seen: Seen) -> None:
    call = called(seen, "hinted")

    # Of the display, for the first file; then of the files themselves. A picture is not code.
    expect(call.locator("figure pre")).to_contain_text("<h1>As a source</h1>")
    call.get_by_role("tab", name="second.txt").click()
    expect(call.locator("figure th").first).to_contain_text("region")
    call.get_by_role("tab", name="third.md").click()
    expect(call.locator("figure pre")).to_contain_text("# As a source")
    call.get_by_role("tab", name="fourth.png").click()
    expect(call.locator("figure img.picture")).to_be_visible()


def test_files_are_shown_with_their_category(seen: Seen) -> None:
    call = called(seen, "sorted_out")

    expect(call.locator("figure .badge")).to_have_text("dataset")
    # No hint says otherwise, so rows are shown as a table.
    expect(call.locator("figure th").first).to_contain_text("region")
    call.get_by_role("tab", name="b.txt").click()
    expect(call.locator("figure .badge")).to_have_text("draft")


def test_all_files_are_saved_as_one_archive(seen: Seen) -> None:
    call = called(seen, "packed")

    with seen.page.expect_download() as saving:
        call.get_by_role("button", name="Download all (2)").click()

    assert saving.value.suggested_filename == "files.zip"
    with zipfile.ZipFile(saving.value.path()) as archive:
        assert archive.testzip() is None
        assert {info.filename: info.file_size for info in archive.infolist()} == {
            "a.txt": 3,
            "ümläut.bin": 300_000,
        }
        assert archive.read("a.txt") == b"one"


def test_extracted_content_is_shown_and_downloaded(seen: Seen) -> None:
    called(seen, "encoded")

    taken = seen.tab("Result").get_by_role("region", name="Taken out of the result")
    taken.get_by_role("button", name="Show").click()
    expect(taken.locator("img.picture")).to_be_visible()
    with seen.page.expect_download() as saving:
        taken.get_by_role("link", name="Download").first.click()
    assert Path(saving.value.path()).read_bytes().startswith(b"\x89PNG")


def test_linked_resource_is_read_only_when_opened(seen: Seen) -> None:
    read: list[str] = []
    seen.page.on("request", lambda request: read.append(request.post_data or ""))
    called(seen, "linked")

    links = seen.tab("Result").get_by_role("region", name="Linked resources")
    expect(links.locator("summary")).to_have_count(2)
    assert not any("resources/read" in each for each in read)
    links.locator("summary").nth(0).click()
    expect(links.locator("pre").first).to_have_text("read at last")
    assert sum("resources/read" in each for each in read) == 1
    links.locator("summary").nth(1).click()
    expect(links.locator("img.picture")).to_be_visible()


def test_binary_resource_is_shown_in_its_viewer_and_saved(seen: Seen) -> None:
    seen.go("resources", "data://picture.png")

    content = seen.page.get_by_role("region", name="Content")
    expect(content.locator("img.picture")).to_be_visible()
    assert content.locator("img.picture").evaluate("image => image.naturalWidth") == 320
    with seen.page.expect_download() as saving:
        content.get_by_role("link", name="Download").click()
    assert saving.value.suggested_filename == "picture.png"
    assert Path(saving.value.path()).read_bytes().startswith(b"\x89PNG")


def test_page_and_files_of_running_tool_are_shown_on_arrival(seen: Seen) -> None:
    seen.tool("live")
    seen.page.get_by_role("button", name="Run").first.click()

    meanwhile = seen.call.get_by_role("region", name="Shown so far")
    expect(framed(meanwhile).get_by_text("Half done")).to_be_visible()
    expect(meanwhile.locator("figure")).to_contain_text("so-far.csv")
    expect(meanwhile.locator("figure th").first).to_contain_text("region")
    release(seen)
    seen.ended()

    page = framed(seen.tab("Canvas"))
    expect(page.get_by_text("All done")).to_be_visible()
    expect(page.get_by_alt_text("plot")).to_be_visible()


def test_events_of_a_call_reach_the_page_without_bytes(seen: Seen, server: Shown) -> None:
    seen.page.evaluate(
        "() => { window.heard = []; const source = new EventSource('/events'); window.source = source;"
        "for (const kind of ['canvas_content', 'progress_artifacts', 'canvas_files', 'files_update'])"
        "source.addEventListener(kind, event => window.heard.push(event.data));"
        "return new Promise(done => { source.onopen = () => done(); }); }"
    )
    seen.tool("live")
    seen.page.get_by_role("button", name="Run").first.click()
    expect(seen.call.get_by_role("region", name="Shown so far")).to_be_visible()
    release(seen)
    seen.ended()
    assert until(lambda: seen.page.evaluate("window.heard.length") == 3)

    messages = [json.loads(text) for text in seen.page.evaluate("window.heard")]
    assert [event["type"] for event in messages] == ["progress_artifacts", "canvas_content", "canvas_content"]
    assert "b64" not in messages[0]["artifacts"][0]
    assert messages[0]["artifacts"][0]["uri"].startswith("artifact://")
    assert ";base64," not in json.dumps(messages)


def test_files_of_another_client_s_call_are_announced(seen: Seen, server: Shown) -> None:
    with server.entered() as browser:
        answer(ask(browser, "tools/call", {"name": "sorted_out", "arguments": {}}))

    news = seen.page.locator(".news")
    expect(news).to_contain_text("Another client called sorted_out")
    news.get_by_role("link", name="a.csv").click()
    expect(seen.page.locator("figure th").first).to_contain_text("region")


def test_data_hidden_from_models_is_shown_to_people(seen: Seen) -> None:
    called(seen, "facts")

    panel = seen.tab("Result")
    panel.get_by_text("Full result").click()
    expect(panel.locator("details pre")).to_contain_text("withheld withheld")
    expect(seen.tab("Model view")).not_to_contain_text("withheld withheld")


def test_promise_views_have_no_accessibility_fault(seen: Seen) -> None:
    for tool in ("drafted", "hinted", "encoded", "linked"):
        called(seen, tool)
        assert faults(seen) == []


def framed(place: Locator) -> FrameLocator:
    """Return what a page that a tool made holds: a frame without an origin in one of the second origin."""
    return place.frame_locator("iframe").frame_locator("iframe")


def release(seen: Seen) -> None:
    """Let the tool `live` go on, as another browser of the same user would."""
    with seen.shown.entered() as browser:
        answer(ask(browser, "tools/call", {"name": "release", "arguments": {}}))
