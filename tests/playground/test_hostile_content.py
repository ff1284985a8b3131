"""Content of hostile tools is shown, and neither runs nor gets anything out.

Source: the design's notes on the security of shown content.
"""

import json
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hostile_support import HTML, SVG, Seen, Sink, observe, quiet
from support import until
from web_support import Seen as Opened
from web_support import expect

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm]


@pytest.mark.parametrize(
    ("mime", "text", "expected"), [("text/html", HTML, "/picture"), ("image/svg+xml", SVG, "/svg-image")]
)
def test_hostile_documents_reach_sink_without_protection(
    looking: Seen, sink: Sink, mime: str, text: str, expected: str
) -> None:
    sink.pages["/control"] = (
        sink.named(text.replace(' [<!ENTITY x SYSTEM "SINK/entity">]', "").replace("&x;", "")),
        mime,
    )
    lines: list[str] = []
    page = looking.page.context.new_page()
    page.on("console", lambda message: lines.append(message.text))

    page.goto(f"{sink.url}/control")

    assert until(lambda: expected in sink.paths)
    assert any("pwned" in each for each in lines)
    page.close()
    sink.paths.clear()


def test_files_are_shown_and_nothing_in_them_runs_or_gets_out(looking: Seen, sink: Sink) -> None:
    looking.tool("files")
    call = looking.run()
    tabs = call.get_by_role("tablist", name="Files").get_by_role("tab")
    titles = tabs.all_inner_texts()

    for number in range(tabs.count()):
        tabs.nth(number).click()
        expect(call.locator("figure .viewer > :first-child").first).to_be_visible()
        expect(call.get_by_text("Loading")).to_have_count(0)

    assert len(titles) == 12
    assert quiet(looking, sink)


def test_hostile_files_are_shown_as_they_are(looking: Seen, sink: Sink) -> None:
    looking.tool("files")
    call = looking.run()
    tab = call.get_by_role("tablist", name="Files").get_by_role("tab")
    viewer = call.locator(".viewer")

    tab.filter(has_text="notes.md").click()
    links = viewer.get_by_role("link")
    expect(links.first).to_be_visible()
    assert links.evaluate_all("all => all.map(each => each.href)") == [
        # What looks like markup is text, and an address in it leads where it says.
        f"{sink.url}/md-html",
        "https://example.com/",
    ]
    tab.filter(has_text="odd.json").click()
    expect(viewer).to_contain_text("123456789012345678901234567890")
    tab.filter(has_text="nested.md").click()
    expect(viewer.locator(".prose pre")).to_be_visible()
    tab.filter(has_text="turned.log").click()
    expect(viewer).to_contain_text("⟨U+202E⟩gnp.exe")
    assert tab.filter(has_text="gnp.exe<img").count() == 1
    tab.filter(has_text="page.html").click()
    still = looking.page.frame_locator("iframe.paper").frame_locator("iframe")
    expect(still.get_by_role("heading")).to_have_text("A page")
    still.get_by_text("go", exact=True).click()

    assert quiet(looking, sink)


def test_file_of_a_tool_is_not_a_script_of_the_page(looking: Seen, sink: Sink) -> None:
    looking.tool("files")
    looking.run()
    files = looking.page.evaluate("fetch('/api/files').then(answer => answer.json())")["files"]
    script = next(f"/artifacts/{each['key']}" for each in files if each["filename"].endswith("script.js"))
    add = """address => new Promise(end => {
      const script = document.createElement("script");
      script.src = address; script.onload = () => end("ran"); script.onerror = () => end("refused");
      document.head.append(script);
    })"""
    own = looking.page.evaluate("document.querySelector('script[src]').src")

    outcome = looking.page.evaluate(add, script)

    assert outcome == "refused"
    assert looking.page.evaluate(add, own) == "ran"
    assert looking.page.evaluate("address => fetch(address).then(answer => answer.text())", script) != ""
    assert quiet(looking, sink)


def test_names_descriptions_and_errors_are_text(looking: Seen, sink: Sink) -> None:
    looking.tool("named")
    expect(looking.page.get_by_text("<b>bold</b>").first).to_be_visible()

    call = looking.run("failed")

    expect(call.get_by_role("alert")).to_contain_text("<img src='")
    assert quiet(looking, sink)


def test_html_resource_is_shown_as_file_and_runs_nothing(looking: Seen, sink: Sink) -> None:
    looking.go("resources", "text://hostile")

    content = looking.page.get_by_role("region", name="Content")
    still = content.frame_locator("iframe.paper").frame_locator("iframe")
    expect(still.get_by_role("heading")).to_have_text("A page")
    still.get_by_text("go", exact=True).click()

    assert quiet(looking, sink)


def test_tool_link_fills_form_and_runs_nothing_for_odd_schemas(looking: Seen, sink: Sink) -> None:
    arguments = json.dumps({"text": "a" * 60 + "!", "__proto__": {"polluted": 1}})

    looking.go("call", "odd", f"args={quote(arguments)}")

    expect(looking.page.get_by_label("text", exact=True)).to_have_value("a" * 60 + "!")
    expect(looking.page.get_by_label("p49", exact=True)).to_be_visible()
    expect(looking.call).to_have_count(0)
    assert quiet(looking, sink)


def test_data_stored_by_an_older_page_is_not_trusted(
    opens_hostile: Callable[..., Opened], sink: Sink
) -> None:
    looking = observe(opens_hostile(), sink)
    panels = json.dumps(
        [{"url": f"{sink.url}/kept"}, {"url": "javascript:console.log('pwned')", "sandbox": "x"}, 7, None]
    )
    looking.page.evaluate(
        """async kept => {
            const { user } = await (await fetch("/play/info")).json();
            localStorage.setItem(`toolcell dashboards ${user}`, kept);
        }""",
        panels,
    )

    looking.page.reload()
    looking.tool("odd")

    expect(looking.page.get_by_role("tablist", name="Dashboards").get_by_role("tab")).to_have_count(2)
    expect(looking.page.get_by_role("button", name="Run").first).to_be_visible()
    assert quiet(looking, sink)
    looking.page.context.close()


def test_no_other_page_may_show_the_playground_in_a_frame(looking: Seen, sink: Sink) -> None:
    sink.pages["/clickjack"] = (
        f"<iframe src='{looking.shown.base}/'></iframe><iframe src='{sink.url}/own'></iframe>",
        "text/html",
    )
    page = looking.page.context.new_page()

    page.goto(f"{sink.url}/clickjack")

    assert until(lambda: "/own" in sink.paths)
    assert [frame.url for frame in page.frames].count(f"{sink.url}/own") == 1
    assert not any(frame.url.startswith(looking.shown.base) for frame in page.frames)
    page.close()
    sink.paths.clear()
