"""Hostile widgets: nothing gets out, nobody else speaks for them, and they can make no frames.

Source: the design's notes on the security of shown content.
"""

import pytest
from hostile_support import FRAMES, Seen, Sink, quiet
from support import until
from web_support import after_turns, expect

pytestmark = [pytest.mark.release, pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm]


def test_widget_leaks_nothing_and_opens_windows_after_consent(looking: Seen, sink: Sink) -> None:
    looking.tool("attack")
    looking.run()
    looking.tab("Widget")
    assert until(after_turns(looking.page, lambda: "all was tried" in looking.console, turn_ms=50))
    asks = looking.call.get_by_role("alert").filter(has_text="wants to open")
    expect(asks).to_contain_text("/opened?secret")

    log = looking.call.get_by_text("Messages and violations")
    log.click()

    expect(looking.call.get_by_text("dropped").first).to_be_visible()
    # Of five thousand messages it keeps as many as a person may want to look at.
    assert looking.call.locator(".logs li").count() <= 500
    height = looking.call.locator(".stage iframe").evaluate("frame => frame.offsetHeight")
    assert height <= 2000
    assert any(each.startswith("answer 3") and "needs an http" in each for each in looking.console)
    assert any(each.startswith("answer 4") and "no tool nothing" in each for each in looking.console)
    assert quiet(looking, sink)
    with looking.page.context.expect_page() as opened:
        asks.get_by_role("button", name="Open", exact=True).click()
    assert until(lambda: "/opened?secret" in sink.paths)
    opened.value.close()
    sink.paths.clear()


def test_messages_of_other_windows_are_not_the_widgets(looking: Seen, sink: Sink) -> None:
    forged = {"jsonrpc": "2.0", "id": 9, "method": "ui/open-link", "params": {"url": f"{sink.url}/forged"}}
    looking.tool("attack")
    looking.run()
    looking.tab("Widget")
    asks = looking.call.get_by_role("alert").filter(has_text="/forged")

    looking.page.evaluate(
        """forged => new Promise(end => {
          const other = document.createElement("iframe");
          document.body.append(other);
          addEventListener("message", () => setTimeout(end), { once: true });
          other.contentWindow.parent.postMessage(forged, "*");
        })""",
        forged,
    )

    expect(asks).to_have_count(0)
    assert quiet(looking, sink)


@pytest.mark.parametrize("way", FRAMES)
def test_a_widget_has_no_frames_in_which_webrtc_would_be_whole(looking: Seen, sink: Sink, way: str) -> None:
    html = sink.named(FRAMES[way])
    sink.pages["/webrtc"] = (html, "text/html")
    control = looking.page.context.new_page()
    control.goto(f"{sink.url}/webrtc")
    reached = until(after_turns(control, lambda: bool(sink.datagrams)))
    control.close()
    lines: list[str] = []
    page = looking.page.context.new_page()
    page.on("console", lambda message: lines.append(message.text))
    origin = looking.page.evaluate("fetch('/play/info').then(answer => answer.json())")["frames"]
    page.goto(looking.shown.base)
    sink.datagrams.clear()

    page.evaluate(
        """([origin, html]) => {
          const frame = document.createElement("iframe");
          frame.sandbox = "allow-scripts allow-same-origin";
          const load = {jsonrpc: "2.0", method: "ui/notifications/sandbox-resource-ready", params: {html}};
          addEventListener("message", ({data}) => {
            const ready = data.method === "ui/notifications/sandbox-proxy-ready";
            if (ready) frame.contentWindow.postMessage(load, origin);
          });
          frame.src = origin + "/widget";
          document.body.append(frame);
        }""",
        [origin, html + "<script>setTimeout(() => console.log('whole'), 600)</script>"],
    )

    assert reached
    assert until(after_turns(page, lambda: "whole" in lines))
    assert not any("pwned" in each for each in lines)
    assert sink.datagrams == []
    page.close()
    sink.paths.clear()
