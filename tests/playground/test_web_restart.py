"""The Playground after its server restarts, and after logging out, in a browser.

Source: `docs/widgets.md`.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from playground_support import Shown
from ports import free_port
from web_support import browsing, expect

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser]

TOOLS = Path(__file__).with_name("first_tools.py")


def test_logging_out_asks_and_keeps_the_history(start: Callable[..., Shown]) -> None:
    shown = start("dev", tools=TOOLS)
    with browsing(shown) as opened:
        seen = opened()
        seen.tool("say")
        seen.page.get_by_label("text", exact=True).fill("kept")
        seen.run()

        seen.log_out()
        expect(seen.page.get_by_role("heading", level=1)).to_have_text("This page needs its key")
        seen.page.goto(f"{shown.base}/?key={shown.key}")
        seen.go("history")

        expect(seen.page.get_by_role("table").get_by_role("row")).to_have_count(2)


def test_the_page_reconnects_after_a_restart(start: Callable[..., Shown], tmp_path: Path) -> None:
    port = str(free_port())
    same = {
        "RUNNER_USER": f"t-{port}",
        "RUNNER_STATE_DIR": str(tmp_path / "state"),
        "RUNNER_STORE": (tmp_path / "store").as_uri(),
    }
    first = start("dev", tools=TOOLS, port=port, **same)
    with browsing(first) as opened:
        seen = opened()
        seen.tool("page")
        seen.run()
        document = seen.tab("Files").frame_locator("iframe.paper").frame_locator("iframe")
        expect(document.locator("#x")).to_have_text("still")
        other = replace(seen, page=seen.page.context.new_page())
        other.page.goto(first.base)
        other.tool("wind")
        other.run()
        widget = other.page.frame_locator(".stage iframe").frame_locator("iframe")
        expect(widget.locator("#at")).to_have_text("noon")

        first.process.terminate()
        first.process.wait()
        expect(seen.page.get_by_role("status").filter(has_text="Reconnecting")).to_be_visible()
        start("dev", tools=TOOLS, port=port, **same)

        for page in (seen.page, other.page):
            expect(page.get_by_role("status").filter(has_text="Reconnecting")).to_have_count(0)
        expect(document.locator("#x")).to_have_text("still")
        expect(widget.locator("#at")).to_have_text("noon")
        seen.run()
        other.run()
