"""Dashboards, widgets, every view without a fault of accessibility, narrow screens, in a browser.

Source: `docs/widgets.md`.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import pytest
from playground_support import Shown
from web_support import WEB_TOOLS, Seen, browsing, expect, faults

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]

BOARD = b"""<!doctype html><html lang="en"><title>Board</title>
<p id="said">waits</p><button id="act">Act</button><script>
addEventListener("message", ({data: {type, id, token}}) => {
  if (type === "toolcell/dashboard-token") document.getElementById("said").textContent = id + " " + token;
});
document.getElementById("act").onclick = () =>
  parent.postMessage({type: "toolcell/dashboard-action", action: "pressed"}, "*");
parent.postMessage({type: "toolcell/dashboard-ready"}, "*");
</script>"""


class _Board(BaseHTTPRequestHandler):
    """A dashboard's own server."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(BOARD)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Discard the log line."""


@pytest.fixture(scope="module")
def board() -> Iterator[str]:
    """The address of a dashboard."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Board) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def opened(start: Callable[..., Shown], board: str) -> Iterator[Callable[..., Seen]]:
    with browsing(start(tools=WEB_TOOLS, RUNNER_IFRAME_ORIGINS=board)) as opening:
        yield opening


@pytest.fixture
def seen(opened: Callable[..., Seen]) -> Iterator[Seen]:
    seen = opened()
    yield seen
    seen.page.context.close()


def show(seen: Seen, url: str, name: str, persistence: str = "session") -> None:
    seen.tool("board")
    seen.write(json.dumps({"url": url, "name": name, "persistence": persistence}))
    seen.run()


def test_dashboard_of_named_origin_gets_verifiable_token(seen: Seen, board: str) -> None:
    """Source: S0-38, S0-46 and S0-47."""
    show(seen, f"{board}/live", "monitor")

    text = seen.page.frame_locator("iframe.paper").locator("#said")
    expect(text).to_contain_text(re.compile(r"monitor \S{20,}"))
    token = text.inner_text().split()[1]
    with httpx2.Client(base_url=seen.shown.base, timeout=180) as server:
        checked = server.post("/api/dashboards/verify", json={"id": "monitor", "token": token})
    assert checked.json() == {"user": seen.shown.user, "id": "monitor"}
    assert token not in " ".join(frame.url for frame in seen.page.frames)


def test_dashboard_action_is_logged_with_user_and_id(seen: Seen, board: str) -> None:
    """Source: S0-43 and S0-74."""
    show(seen, f"{board}/live", "acted")

    expect(seen.page.frame_locator("iframe.paper").locator("#said")).to_contain_text("acted ")
    with seen.page.expect_response("**/play/dashboards/actions") as answered:
        seen.page.frame_locator("iframe.paper").locator("#act").click()

    assert answered.value.status == 204
    assert answered.value.request.post_data_json == {"id": "acted", "action": "pressed"}


def test_dashboard_of_other_origin_is_refused_with_reason(seen: Seen) -> None:
    """Source: S0-45."""
    show(seen, "http://127.0.0.1:9/", "stranger")

    expect(seen.call.get_by_role("alert").first).to_contain_text(
        "the origin http://127.0.0.1:9 is not allowed"
    )
    expect(seen.page.locator("iframe")).to_have_count(0)


def test_pinned_dashboard_survives_reload_and_ephemeral_does_not(seen: Seen, board: str) -> None:
    """Source: S0-42."""
    show(seen, f"{board}/a", "short", "ephemeral")
    expect(seen.call.get_by_role("tab", name="Board short")).to_be_visible()
    seen.tool("forbidden")
    seen.run()
    expect(seen.call.get_by_role("tab", name="Board short")).to_have_count(0)
    show(seen, f"{board}/b", "long", "pinned")
    expect(seen.call.get_by_role("tab", name="Board long")).to_be_visible()

    seen.go("call", "echo")
    seen.page.reload()

    expect(seen.page.get_by_role("tab", name="Board long")).to_be_visible()
    expect(seen.page.frame_locator("iframe.paper").locator("#said")).to_contain_text("long ")


def test_policy_violation_of_widget_is_logged(seen: Seen) -> None:
    seen.tool("wander")
    seen.run()

    widget = seen.page.frame_locator(".stage iframe").frame_locator("iframe")
    expect(widget.locator("#here")).to_have_text("stopped")
    seen.page.get_by_text("Messages and violations").click()
    expect(seen.page.locator(".logs .error").first).to_contain_text("toolcell/violation")
    expect(seen.page.locator(".logs .error").first).to_contain_text("https://elsewhere.example/")


def test_widget_dashboard_and_past_call_have_no_axe_fault(seen: Seen, board: str) -> None:
    seen.tool("wander")
    seen.run()
    found = faults(seen)
    show(seen, board, "axe")
    found += faults(seen)
    seen.go("history")
    seen.page.locator("table.grid a").first.click()
    found += faults(seen)

    assert found == []


@pytest.mark.parametrize("width", [320, 480, 820])
def test_nothing_runs_out_of_a_narrow_screen(seen: Seen, width: int) -> None:
    seen.page.set_viewport_size({"width": width, "height": 844})
    seen.tool("gallery")
    seen.run()
    seen.tool("forbidden")
    seen.run()
    seen.tab("Sandbox")
    wide = {"sandbox": seen.page.evaluate("document.documentElement.scrollWidth")}

    for view in ("call", "files", "resources", "history"):
        seen.go(view)
        seen.page.get_by_role("main").wait_for()
        wide[view] = seen.page.evaluate("document.documentElement.scrollWidth")

    assert {view: each for view, each in wide.items() if each > width} == {}
