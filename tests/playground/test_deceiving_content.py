"""Content made by a tool is marked as such, whatever it pretends to be."""

# ruff: noqa: E501, UP031 - scripts of pages are full of braces

from collections.abc import Callable, Iterator

import pytest
from deceiving_support import DECEIVING
from playground_support import Shown
from web_support import Seen, browsing, expect

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]


@pytest.fixture(scope="module")
def opened(
    start: Callable[..., Shown], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Seen]]:
    file = tmp_path_factory.mktemp("deceiving") / "deceiving.py"
    file.write_text(DECEIVING)
    with browsing(start(tools=file)) as opened:
        yield opened


@pytest.fixture(scope="module")
def made(opened: Callable[..., Seen]) -> Seen:
    """A page that shows what the tool `files` made, and calls nothing else."""
    looking = opened()
    looking.tool("files")
    looking.write('{"base": "%s"}' % looking.shown.base)
    looking.run()
    return looking


@pytest.fixture(scope="module")
def seen(opened: Callable[..., Seen]) -> Seen:
    """Another page, which calls `reports`."""
    return opened()


def file(made: Seen, name: str) -> None:
    made.tab("Files")
    made.call.get_by_role("tablist", name="Files").get_by_role("tab").filter(has_text=name).click()


def test_a_page_is_framed_as_content_and_its_fields_take_nothing(made: Seen) -> None:
    file(made, "page.html")
    inside = made.page.frame_locator("iframe.paper").frame_locator("iframe")

    expect(inside.get_by_role("heading")).to_have_text("Session expired")
    expect(made.call.locator(".framed-head")).to_contain_text("A page that a tool made.")
    expect(inside.get_by_placeholder("Password")).to_be_disabled()
    for role in ("textbox", "combobox", "button"):
        for field in inside.get_by_role(role).all():
            expect(field).to_be_disabled()
    assert inside.get_by_role("textbox").count() >= 1
    inside.get_by_text("edit me").click()
    made.page.keyboard.type("secret")
    expect(inside.get_by_text("edit me")).to_have_text("edit me")


def test_links_show_their_address_unless_text_matches(made: Seen) -> None:
    file(made, "notes.md")
    prose = made.call.locator(".prose")
    expect(prose.get_by_role("heading", name="Report")).to_be_visible()

    links = prose.get_by_role("link").evaluate_all("all => all.map(each => [each.textContent, each.href])")
    badges = prose.locator(".badge").all_inner_texts()
    closed = prose.locator(".closed").all_inner_texts()

    assert [href for _, href in links] == [
        *(
            f"https://{host}/{path}"
            for host, path in (
                ("example.com", "a"),
                ("example.com", "b"),
                ("example.com", "c"),
                ("www.example.com", "d"),
            )
        ),
        "https://evil.example/x",
        "https://evil.example/y",
    ]
    assert [text for text, _ in links][-2:] == ["your bank.example.com", "https://b\u0430nk.example/"]
    assert badges == ["leads to evil.example", "leads to evil.example"]
    assert closed == ["own", "local", "hidden", "user", "name"]
    expect(prose).to_contain_text("Tagged⟨U+E0041⟩⟨U+E0042⟩ and ⟨U+202E⟩turned and a⟨U+009B⟩control")


@pytest.mark.parametrize("name", ["quotes.md", "lists.md", "marks.md"])
def test_deeply_nested_markdown_is_shown_as_text(made: Seen, name: str) -> None:
    file(made, name)

    expect(made.call.locator(".prose")).to_be_visible()
    expect(made.call.locator(".viewer").get_by_role("alert")).to_have_count(0)
    deepest = made.call.locator(".prose").evaluate(
        "prose => Math.max(...[...prose.querySelectorAll('*')].map(each => { let d = 0; for (; each !== prose; each = each.parentElement) d++; return d; }))"
    )
    assert 0 < deepest < 60


@pytest.mark.parametrize(("name", "count"), [("line.txt", "199,008"), ("line.json", "199,002")])
def test_overlong_line_is_folded_and_opens(made: Seen, name: str, count: str) -> None:
    file(made, name)
    viewer = made.call.locator(".viewer")
    fold = viewer.get_by_role("button", name=f"{count} more characters in this line")

    expect(fold).to_be_visible()
    assert len(viewer.inner_text()) < 5_000
    fold.click()

    assert len(viewer.inner_text()) > 200_000
    assert made.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_short_line_is_not_folded(made: Seen) -> None:
    file(made, "short.txt")

    expect(made.call.locator(".viewer")).to_contain_text("z" * 300)
    expect(made.call.locator(".viewer .fold")).to_have_count(0)


def test_a_long_line_of_a_result_is_folded_too(made: Seen) -> None:
    panel = made.tab("Result")

    expect(panel.locator(".fold").first).to_be_visible()
    assert len(panel.inner_text()) < 20_000


@pytest.mark.parametrize(
    ("progress", "total", "shown"),
    [(1, 2, "50"), (-5, 2, "0"), (7, 2, "100"), (1e12, 1e-6, "100"), (1, 0, "100"), (0, 0, None)],
)
def test_progress_is_clamped_and_its_words_are_plain(
    seen: Seen, progress: float, total: float, shown: str | None
) -> None:
    message = "a\\u001b[31mred\\u202eturned\\u009bc1\\udb40\\udc41 " + "long " * 2_000
    seen.tool("reports")
    seen.write('{"progress": %s, "total": %s, "message": "%s"}' % (progress, total, message))

    seen.page.get_by_role("button", name="Run").first.click()

    status = seen.call.locator("[aria-live=polite]")
    expect(status).to_contain_text("a␛[31mred⟨U+202E⟩turned⟨U+009B⟩c1⟨U+E0041⟩ long")
    assert len(status.inner_text()) < 1_000
    bar = seen.call.get_by_role("progressbar", name="Progress")
    if shown is None:
        expect(bar).to_have_count(0)
    else:
        expect(bar).to_have_attribute("aria-valuenow", shown)
    seen.page.evaluate(RELEASE)
    seen.ended()


RELEASE = """fetch("/play/mcp", {method: "POST", headers: {"content-type": "application/json",
  "accept": "application/json, text/event-stream", "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "release"},
  body: JSON.stringify({jsonrpc: "2.0", id: 1, method: "tools/call", params: {name: "release", arguments: {}, _meta: {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientInfo": {name: "t", version: "1"},
    "io.modelcontextprotocol/clientCapabilities": {}}}})}).then(answer => answer.text())"""


def test_report_storm_is_painted_at_most_ten_times_a_second(seen: Seen) -> None:
    seen.tool("reports")
    seen.write('{"message": "storm", "times": 50, "total": 1e9}')
    seen.page.get_by_role("button", name="Run").first.click()
    expect(seen.call.locator("[aria-live=polite]")).to_have_text("storm")

    changes, seconds, announcements = seen.page.evaluate(
        """async () => { let changes = 0; const bar = document.querySelector("section[aria-label=Call]");
          let last = -1;
          const observer = new MutationObserver(() => { const now = Math.floor(performance.now()); if (now - last > 4) changes += 1; last = now; });
          const texts = bar.querySelector("[role=progressbar]").parentElement;
          observer.observe(texts, {subtree: true, childList: true, characterData: true, attributes: true});
          const began = performance.now(); await new Promise(end => setTimeout(end, 4000));
          observer.disconnect(); return [changes, (performance.now() - began) / 1000, 0]; }"""
    )
    seen.page.evaluate(RELEASE)
    seen.ended()

    messages = seen.tab("Messages").locator("li").count()
    assert messages > 100
    # The page's clock, which says how much time is left, ticks four times a second beside the reports.
    assert changes <= (10 + 4) * seconds + 2
    assert announcements == 0
