"""My Files in a browser: many files, found, sorted, in folders, several at once; what events change.

Source: `docs/widgets.md`.
"""

import io
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playground_support import Shown
from playwright.sync_api import FilePayload, Route
from support import until
from web_support import WEB_TOOLS, Seen, browsing, expect, faults

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]

MANY = 10_000


@pytest.fixture(scope="module")
def opened(start: Callable[..., Shown]) -> Iterator[Callable[..., Seen]]:
    with browsing(start(tools=WEB_TOOLS)) as opening:
        yield opening


@pytest.fixture
def seen(opened: Callable[..., Seen]) -> Iterator[Seen]:
    seen = opened(accept_downloads=True)
    yield seen
    seen.page.context.close()


@pytest.fixture
def many(opened: Callable[..., Seen]) -> Iterator[Seen]:
    """A page whose list has ten thousand files more: a store takes minutes to keep so many."""
    seen = opened()

    def longer(route: Route) -> None:
        if route.request.method != "GET":
            route.fallback()
            return
        answer = route.fetch()
        body = answer.json()
        body["files"] += [row(number) for number in range(MANY)]
        route.fulfill(response=answer, json=body)

    seen.page.route(re.compile(r"/api/files$"), longer)
    yield seen
    seen.page.context.close()


def row(number: int) -> dict[str, object]:
    """Return a file of the list."""
    name = f"{'even' if number % 2 == 0 else 'odd'}_{number}.txt"
    key = f"art_{number:012x}"
    record = {"key": key, "filename": name, "content_type": "text/plain", "size": number, "sha256": "0" * 64}
    more = {"created": "2026-11-21T15:00:00+00:00", "expires_at": None, "uri": f"artifact://{key}"}
    return {**record, **more, "origin": "uploaded", "pending": False}


def keep(seen: Seen, *names: str) -> None:
    """Keep files by the API, as another program of the user does."""
    for name in names:
        put = "n => fetch('/api/files?filename=' + n, {method: 'PUT', body: n}).then(r => r.status)"
        assert seen.page.evaluate(put, name) == 201


def names(seen: Seen) -> list[str]:
    """Return the names of the files in the list, as they stand."""
    return seen.page.locator("td.first a").all_inner_texts()


def test_files_are_found_and_sorted(seen: Seen) -> None:
    keep(seen, "find2_report.csv", "find10_report.csv", "find1_long_notes.md")
    seen.go("files")
    page = seen.page
    page.get_by_label("Search files").fill("find")
    expect(page.get_by_role("status").filter(has_text=re.compile("^3 files"))).to_be_visible()
    assert names(seen) == ["find1_long_notes.md", "find2_report.csv", "find10_report.csv"]

    page.get_by_role("button", name="Size").click()
    expect(page.locator("td.first a").first).to_have_text("find1_long_notes.md")
    page.get_by_role("button", name="Size").click()
    expect(page.locator("td.first a").first).to_have_text("find2_report.csv")

    assert faults(seen) == []


def test_selected_files_are_saved_as_zip_and_undeleted(seen: Seen) -> None:
    keep(seen, "bulk_a.txt", "bulk_b.txt", "bulk_c.txt")
    seen.go("files")
    page = seen.page
    page.get_by_label("Search files").fill("bulk_")
    page.get_by_label("Choose all that are listed").check()
    page.get_by_label("Choose bulk_c.txt").uncheck()
    chosen = page.get_by_role("region", name="Chosen files")
    expect(chosen).to_contain_text("2 chosen, 20 B")

    with page.expect_download() as download:
        chosen.get_by_role("button", name="Download as ZIP").click()
    packed = zipfile.ZipFile(io.BytesIO(Path(download.value.path()).read_bytes()))
    assert {name: packed.read(name) for name in packed.namelist()} == {
        "bulk_a.txt": b"bulk_a.txt",
        "bulk_b.txt": b"bulk_b.txt",
    }

    chosen.get_by_role("button", name="Delete 2").click()
    expect(page.get_by_role("button", name="Undo")).to_be_focused()
    expect(page.locator("td.first a")).to_have_text(["bulk_c.txt"])
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("td.first a")).to_have_count(3)

    page.get_by_label("Choose all that are listed").check()
    with page.expect_response(lambda answer: answer.request.method == "DELETE") as gone:
        chosen.get_by_role("button", name="Delete 3").click()
    assert gone.value.status == 204
    expect(page.get_by_text("being deleted")).to_have_count(0)
    left = page.evaluate("fetch('/api/files').then(r => r.json())")["files"]
    assert [file["filename"] for file in left if file["filename"].startswith("bulk_")] == []


def test_dropped_files_are_uploaded_in_turn_with_progress(seen: Seen) -> None:
    seen.go("files")
    page = seen.page
    page.evaluate(
        "() => { window.parts = []; new MutationObserver(() => {"
        " const bar = document.querySelector('[aria-label=\"Upload of all\"]');"
        " if (bar) window.parts.push(Number(bar.getAttribute('aria-valuenow'))) })"
        ".observe(document.body, {subtree: true, childList: true, attributes: true}) }"
    )
    drop = page.evaluate_handle(
        "() => { const given = new DataTransfer(); for (let n = 1; n <= 20; n += 1)"
        " given.items.add(new File(['x'.repeat(n * 1000)], `dropped_${n}.txt`)); return given }"
    )

    page.locator(".drop-zone").dispatch_event("drop", {"dataTransfer": drop})

    expect(page.get_by_role("link", name="dropped_20.txt")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="dropped_7.txt")).to_contain_text("7.0 kB")
    expect(page.get_by_role("progressbar")).to_have_count(0)
    parts = page.evaluate("window.parts")
    assert parts == sorted(parts)
    assert len(set(parts)) > 3


def test_failed_upload_names_its_reason_and_others_proceed(seen: Seen) -> None:
    seen.go("files")
    page = seen.page
    page.route(re.compile("filename=lost_"), lambda route: route.abort())
    files: list[FilePayload] = [
        {"name": "lost_one.txt", "mimeType": "text/plain", "buffer": b"1"},
        {"name": "sent_one.txt", "mimeType": "text/plain", "buffer": b"2"},
    ]
    page.locator("input[type=file]").set_input_files(files)

    expect(page.get_by_role("link", name="sent_one.txt")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("the connection was lost")
    page.get_by_role("button", name="Dismiss").click()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_ten_thousand_files_show_few_rows_and_search_is_fast(many: Seen) -> None:
    many.go("files")
    page = many.page
    expect(page.get_by_role("status").filter(has_text=re.compile(r"^10,0\d\d files"))).to_be_visible()
    assert page.locator("tbody tr").count() < 100
    page.get_by_label("Search files").fill("odd_")
    page.get_by_role("region", name="Files").evaluate("box => { box.scrollTop = box.scrollHeight }")
    expect(page.get_by_role("link", name="odd_9999.txt")).to_be_visible()
    assert page.locator("tbody tr").count() < 100

    took = page.evaluate(
        """async () => {
          const field = document.querySelector('[aria-label="Search files"]');
          let longest = 0;
          for (const words of ['o', 'od', 'odd', 'odd_', 'odd_4', 'odd_43', 'odd_432']) {
            const begun = performance.now();
            field.value = words;
            field.dispatchEvent(new Event('input', {bubbles: true}));
            await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
            longest = Math.max(longest, performance.now() - begun);
          }
          return longest;
        }"""
    )

    expect(page.locator("td.first a").first).to_have_text("odd_4321.txt")
    # Of a machine that does other things besides; one that writes all rows takes seconds.
    assert took < 1000
    page.get_by_label("Search files").fill("")
    assert faults(many) == []


def test_an_event_changes_one_row_and_does_not_fetch_the_list(many: Seen) -> None:
    many.go("files")
    page = many.page
    expect(page.get_by_role("status").filter(has_text=re.compile(r"^10,0\d\d files"))).to_be_visible()
    page.get_by_label("Search files").fill("event_")
    lists: list[str] = []
    page.on(
        "request",
        lambda request: (
            lists.append(request.url)
            if request.method == "GET" and request.url.endswith("/api/files")
            else None
        ),
    )

    def is_announced() -> bool:
        # Again and again: the stream of news opens in its own time.
        keep(many, "event_one.txt")
        return page.get_by_role("link", name="event_one.txt").count() == 1

    assert until(is_announced)
    # The list is asked for once as the stream begins.
    lists.clear()
    keep(many, "event_two.txt")
    expect(page.locator("td.first a")).to_have_text(["event_one.txt", "event_two.txt"])
    page.evaluate(
        "() => fetch('/api/files').then(r => r.json()).then(b => { const f = b.files.find("
        "f => f.filename === 'event_two.txt'); return fetch('/api/files/' + f.key + "
        "'?filename=event_two.txt', {method: 'DELETE'}) })"
    )

    expect(page.locator("td.first a")).to_have_text(["event_one.txt"])
    # One: the test's own.
    assert len(lists) == 1
