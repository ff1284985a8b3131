"""Limits reached in a page: time, lifetime of a file, room in a message.

Source: `docs/widgets.md`; requirements S1-113 to S1-128.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from playground_support import Shown
from support import until
from web_support import WEB_TOOLS, Seen, browsing, expect

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]

SHORT = """
[tools.silent]
idle_timeout_s = 6
"""


@pytest.fixture(scope="module")
def opened(start: Callable[..., Shown]) -> Iterator[Callable[..., Seen]]:
    # The last notice comes five seconds before the end, the first two after 15 and 20 seconds: of those the
    # ladder's own tests tell.
    with browsing(start(tools=WEB_TOOLS, config=SHORT)) as opening:
        yield opening


@pytest.fixture
def seen(opened: Callable[..., Seen]) -> Iterator[Seen]:
    seen = opened(accept_downloads=True)
    yield seen
    seen.page.context.close()


def test_silent_call_shows_notices_and_final_advice(seen: Seen) -> None:
    seen.tool("silent")
    seen.page.get_by_role("button", name="Run").first.click()

    expect(seen.call).to_contain_text("(ends at 6.0 s)")
    expect(seen.call.locator(".notice").first).to_have_text(
        "Processing continues. The tool will timeout in 5 seconds if no progress."
    )
    expect(seen.call.get_by_label("Log", exact=True)).to_contain_text("will timeout in 5 seconds")
    seen.ended("failed")

    alert = seen.tab("Result").get_by_role("alert")
    expect(alert).to_contain_text("E_TIMEOUT")
    expect(alert.get_by_role("heading")).to_have_text(["What happened", "Why", "What to try"])
    expect(alert).to_contain_text("using progress reporting. Give it less to do")
    expect(seen.tab("Log")).to_contain_text("will timeout in 5 seconds")


def test_temporary_file_shows_lifetime_and_how_to_regain_it(seen: Seen) -> None:
    seen.tool("brief")
    seen.write('{"seconds": 20}')
    seen.run()
    files = seen.tab("Files")
    expect(files.locator("figcaption")).to_contain_text("expires in")
    expect(files.locator("figure pre")).to_contain_text("not finished")
    with seen.page.expect_download() as download:
        files.get_by_role("link", name="Download").click()
    assert download.value.path().read_text() == "not finished"
    address = seen.page.evaluate("location.origin") + str(
        files.get_by_role("link", name="Download").get_attribute("href")
    )
    assert until(lambda: seen.page.context.request.get(address, fail_on_status_code=False).status == 404)

    files.get_by_role("link", name="Download").click()

    gone = files.get_by_role("alert")
    expect(gone).to_contain_text("This file cannot be downloaded: it is no longer kept")
    expect(gone).to_contain_text("Run the tool again to create it again")
    seen.page.reload()
    files = seen.tab("Files")
    expect(files.locator("figcaption")).to_contain_text("expired")
    expect(files.get_by_role("alert")).to_contain_text("This file cannot be shown: it is no longer kept")
    seen.go("show", address.rsplit("/", 1)[1].replace("art_", "artifact://art_"))
    expect(seen.page.get_by_role("main")).to_contain_text("Run the tool that made it again")


def test_late_download_is_reported_in_my_files(seen: Seen) -> None:
    seen.tool("brief")
    seen.write('{"seconds": 20}')
    seen.run()
    seen.go("files")
    row = seen.page.get_by_role("row").filter(has_text="draft.txt")
    expect(row).to_contain_text("in ")
    made = datetime.now(UTC)
    assert until(lambda: (datetime.now(UTC) - made).total_seconds() > 20)

    row.get_by_role("link", name="Download").click()

    expect(seen.page.get_by_role("alert")).to_contain_text(
        "draft.txt cannot be downloaded: it is no longer kept"
    )


@pytest.mark.parametrize(("rows", "inline"), [(500, True), (800, False)])
def test_picture_at_message_limit_is_shown_like_a_larger_one(seen: Seen, rows: int, *, inline: bool) -> None:
    seen.tool("noise")
    seen.write(f'{{"rows": {rows}}}')
    seen.run()

    picture = seen.tab("Files").locator("img.picture")
    expect(picture).to_have_js_property("naturalHeight", rows)
    expect(picture).to_have_js_property("naturalWidth", 400)
    messages = seen.tab("Messages").get_by_role("listitem").last
    text = messages.locator("pre").inner_text()
    model = seen.tab("Model view").inner_text()
    # Without room for it the message has a smaller picture, and a link to the original.
    assert ("resource_link" not in text) == ("resource_link" not in model) == inline
    assert "more characters" in text
    assert "characters of base64" in model
