"""Files that tools made, My Files, resources and past calls, in a browser.

Source: `docs/widgets.md`.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playground_support import Shown
from support import until
from web_support import ROOT, WEB_TOOLS, Seen, browsing, expect

pytestmark = [pytest.mark.release, pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm]


@pytest.fixture(scope="module")
def opened(start: Callable[..., Shown]) -> Iterator[Callable[..., Seen]]:
    with browsing(start(tools=WEB_TOOLS)) as opening:
        yield opening


@pytest.fixture
def seen(opened: Callable[..., Seen]) -> Iterator[Seen]:
    seen = opened(accept_downloads=True)
    yield seen
    seen.page.context.close()


@pytest.fixture(scope="module")
def made(opened: Callable[..., Seen]) -> Iterator[Seen]:
    """A page with the result that has a file of each kind."""
    seen = opened()
    seen.tool("gallery")
    seen.run()
    yield seen
    seen.page.context.close()


@pytest.mark.parametrize(
    ("name", "selector", "text"),
    [
        ("picture.png", "img.picture", None),
        ("drawing.svg", "img.picture", None),
        ("paper.pdf", "canvas", None),
        ("notes.md", ".prose h2", "Notes"),
        ("notes.md", ".prose li", "one"),
        ("sales.csv", "th", "region"),
        ("sales.csv", "[role=status]", "399 rows, 3 columns"),
        ("data.json", "[role=treeitem]", "12345678901234567890123"),
        ("code.py", "pre .hljs-keyword", "def"),
        ("build.log", "pre", "␛[31mred"),
        ("film.webm", "[role=alert]", "cannot play it"),
        ("blob.bin", "p", "no viewer for this kind"),
    ],
)
def test_a_file_is_shown_by_the_viewer_of_its_kind(
    made: Seen, name: str, selector: str, text: str | None
) -> None:
    """Source: S0-24, S0-29 and S0-32."""
    tab = made.call.get_by_role("tab", name=name)
    tab.click()

    shown = made.call.locator(f"figure {selector}").first
    expect(shown).to_be_visible()
    # Not all fit in their row.
    expect(tab).to_be_in_viewport(ratio=1)
    if text is not None:
        expect(shown).to_contain_text(text)


def test_a_picture_and_a_page_of_paper_have_something_on_them(made: Seen) -> None:
    """Source: S0-29 and S0-30."""
    made.call.get_by_role("tab", name="picture.png").click()
    expect(made.call.locator("img.picture")).to_have_js_property("naturalWidth", 320)

    made.call.get_by_role("tab", name="paper.pdf").click()
    made.page.wait_for_function(
        "() => { const c = document.querySelector('figure canvas'); if (!c || !c.width) return false;"
        " const data = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        " return data.some((v, i) => i % 4 === 0 && v < 60) }"
    )


def test_sound_is_played_from_its_address(made: Seen) -> None:
    made.call.get_by_role("tab", name="tone.wav").click()

    made.page.wait_for_function("() => document.querySelector('figure audio')?.duration > 0.4")


def test_html_is_shown_without_its_scripts_on_the_second_origin(made: Seen) -> None:
    """Source: S0-31, S0-48 and S0-62."""
    made.call.get_by_role("tab", name="page.html").click()

    inner = made.page.frame_locator("iframe.paper").frame_locator("iframe")
    expect(inner.get_by_role("heading")).to_have_text("A page")
    outer = next(frame for frame in made.page.frames if "/still" in frame.url)
    assert outer.url.split("/still")[0] != made.shown.base
    assert inner.locator("script").count() == 0


def test_a_table_is_sorted_and_filtered(made: Seen) -> None:
    made.call.get_by_role("tab", name="sales.csv").click()
    made.call.get_by_role("button", name="units").click()
    made.call.get_by_role("button", name="units").click()

    expect(made.call.locator("tbody tr[aria-rowindex]").first).to_contain_text("399")
    made.call.get_by_label("Filter rows").fill("17.50")
    expect(made.call.get_by_role("status").filter(has_text="rows")).to_contain_text("4 rows")
    # Others look at this page, too.
    made.call.get_by_label("Filter rows").fill("")


def test_file_is_uploaded_used_downloaded_and_undeleted(seen: Seen) -> None:
    """Source: S0-75, S1-18 and S4-99."""
    page = seen.page
    seen.go("files")
    page.locator("input[type=file]").set_input_files(
        {"name": "three.txt", "mimeType": "text/plain", "buffer": b"a\nb\nc\n"}
    )
    row = page.get_by_role("row").filter(has_text="three.txt")
    expect(row).to_contain_text("6 B")
    expect(page.get_by_text(re.compile("of .* used"))).to_be_visible()

    with page.expect_download() as download:
        row.get_by_role("link", name="Download").click()
    assert Path(download.value.path()).read_bytes() == b"a\nb\nc\n"
    assert download.value.suggested_filename == "three.txt"

    row.get_by_label("Use three.txt with a tool").select_option("lines")
    expect(page.get_by_label("filename", exact=True)).to_have_value("three.txt")
    seen.run()
    expect(seen.tab("Result").locator("pre").first).to_contain_text('"lines": 3')

    seen.go("files")
    row.get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(row).to_have_count(1)


def test_files_are_dropped_into_a_field_and_chosen_from_my_files(seen: Seen) -> None:
    seen.tool("measures")
    page = seen.page
    drop = page.evaluate_handle(
        "() => { const given = new DataTransfer();"
        " given.items.add(new File(['12345'], 'dropped.txt', {type: 'text/plain'})); return given }"
    )

    page.locator(".drop").dispatch_event("drop", {"dataTransfer": drop})

    expect(page.locator(".drop li")).to_contain_text("dropped.txt")
    seen.run()
    expect(seen.tab("Result").locator("pre").first).to_contain_text('dropped.txt": 5')


def test_resources_are_listed_read_and_followed(seen: Seen) -> None:
    """Source: S4-98 and S4-99."""
    seen.go("resources", "runner://contract/2.1")

    content = seen.page.get_by_role("region", name="Content")
    expect(content.get_by_role("tree")).to_contain_text("Tool result, contract version")
    content.get_by_role("button", name="Subscribe").click()
    # The contract never changes.
    expect(seen.page.get_by_role("alert")).to_contain_text("announces no changes")
    expect(content.get_by_role("button", name="Subscribe", exact=True)).to_be_visible()
    seen.go("resources", "runner://files")
    content.get_by_role("button", name="Subscribe").click()
    expect(content.get_by_role("button", name="Subscribed")).to_be_visible()
    expect(seen.page.get_by_role("alert")).to_have_count(0)


def test_subscription_made_while_the_page_loads_holds(opened: Callable[..., Seen]) -> None:
    seen = opened()
    # The history is there long after the page.
    seen.page.context.add_init_script(
        "Object.defineProperty(IDBOpenDBRequest.prototype, 'onsuccess', {set(act) {"
        "this.addEventListener('success', () => { window.opened = () => act.call(this); }); }});"
    )
    seen.go("resources", "runner://files")
    seen.page.reload()
    content = seen.page.get_by_role("region", name="Content")
    content.get_by_role("button", name="Subscribe").click()
    expect(content.get_by_role("button", name="Subscribed")).to_be_visible()

    with seen.page.expect_request(lambda request: "tools/list" in (request.post_data or "")):
        seen.page.evaluate("window.opened()")

    expect(content.get_by_role("button", name="Subscribed")).to_be_visible()
    seen.page.context.close()


def test_change_of_a_followed_resource_is_shown(seen: Seen) -> None:
    seen.go("resources")
    own = seen.page.get_by_role("region", name="Own resources")
    own.get_by_role("link", name="files").click()
    content = seen.page.get_by_role("region", name="Content")
    with seen.page.expect_request(lambda request: "resources/subscribe" in (request.post_data or "")):
        content.get_by_role("button", name="Subscribe").click()
    expect(content.get_by_role("button", name="Subscribed")).to_be_visible()

    def is_announced() -> bool:
        # Again and again: the stream of news opens in its own time.
        seen.page.evaluate(
            "n => fetch('/api/files?filename=new' + n, {method: 'PUT', body: 'x'})", time.monotonic_ns()
        )
        return content.get_by_text("updated").count() > 0

    assert until(is_announced)
    content.get_by_role("button", name="Read again").click()
    expect(content.get_by_text("updated")).to_have_count(0)


def test_large_json_file_and_long_result_leave_page_usable(seen: Seen) -> None:
    seen.tool("large")
    seen.run()
    seen.tab("Files")
    expect(seen.call.locator("figure pre")).to_contain_text('"name": "row"')
    seen.call.get_by_role("button", name="Next").click()
    expect(seen.call.get_by_label("part")).to_have_value("2")

    seen.tool("wordy")
    seen.run()
    seen.tab("Model view")
    seen.go("history")

    expect(seen.page.get_by_role("heading", name="History")).to_be_visible()


def test_download_link_is_hidden_from_the_model(seen: Seen) -> None:
    seen.tool("large")

    seen.run()

    expect(seen.tab("Messages")).to_contain_text("toolcell/download")
    model = seen.tab("Model view")
    expect(model).to_contain_text("resource_link")
    expect(model).not_to_contain_text("toolcell/download")
    expect(model).not_to_contain_text("_meta")


def test_a_past_call_is_run_again_changed_and_compared(seen: Seen) -> None:
    seen.tool("publish")
    seen.page.get_by_label("text").fill("one")
    seen.run()
    seen.go("history")
    page = seen.page

    page.get_by_role("row").filter(has_text="publish").get_by_role("link", name="Edit").click()
    expect(page.get_by_label("text")).to_have_value("one")
    page.get_by_label("text").fill("three")
    seen.run()
    expect(seen.tab("Result").locator("pre").first).to_have_text("sent 5 characters")
    seen.go("history")
    for box in page.get_by_role("checkbox").all():
        box.check()

    difference = page.get_by_role("region", name="Difference")
    expect(difference.locator("del").first).to_contain_text("one")
    expect(difference.locator("ins").first).to_contain_text("three")


def exported(seen: Seen, form: str) -> str:
    """Return a call in the words of another program."""
    seen.page.get_by_role("tab", name=form, exact=True).click()
    return (
        seen.page.get_by_role("region", name="Arguments").get_by_role("tabpanel").locator("pre").inner_text()
    )


def test_call_is_exported_in_forms_that_run(seen: Seen, tmp_path: Path) -> None:
    seen.tool("publish")
    seen.page.get_by_label("text").fill('it\'s \\ "ü"')
    seen.run()
    seen.go("history")
    seen.page.get_by_role("row").filter(has_text="publish").first.get_by_role("link", name="publish").click()
    environment = {
        "RUNNER_STATE_DIR": str(tmp_path / "state"),
        "RUNNER_STORE": (tmp_path / "store").as_uri(),
        "RUNNER_USER": seen.shown.user + "x",
    }
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def output_of(command: list[str]) -> str:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, **environment, "PATH": path},
            check=False,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    curl = output_of(["bash", "-c", exported(seen, "curl")])
    python = output_of([sys.executable, "-c", exported(seen, "Python")])
    test = tmp_path / "test_exported.py"
    test.write_text(exported(seen, "pytest").replace("FILE", str(WEB_TOOLS)))
    passed = output_of(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(tmp_path),
            "-c",
            os.devnull,
            str(test),
        ]
    )
    shell = output_of(["bash", "-c", exported(seen, "runner call").replace("FILE", str(WEB_TOOLS))])

    assert "sent 10 characters" in curl
    assert "sent 10 characters" in python
    assert "1 passed" in passed
    assert "sent 10 characters" in shell
