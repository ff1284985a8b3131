"""Other people's servers behind `runner proxy`, in a browser: resources, and widgets that keep to their own.

Source: `docs/widgets.md`; requirement S4-98; MCP Apps 2026-01-26, "Tool Visibility".
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playground_support import Shown, answer, ask
from playwright.sync_api import Locator
from web_support import Seen, browsing, expect, faults

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]

REMOTE = Path(__file__).with_name("web_remote.py")


@pytest.fixture(scope="module")
def opened(
    start: Callable[..., Shown], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Seen]]:
    servers = {
        name: {"command": sys.executable, "args": [str(REMOTE), name], "cwd": str(REMOTE.parent)}
        for name in ("alpha", "beta")
    }
    file = tmp_path_factory.mktemp("proxied") / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    shown = start("proxy", tools=file)
    # The servers are started with the first question, which takes a while on a busy machine.
    with shown.entered() as browser:
        answer(ask(browser, "tools/list", {}))
    with browsing(shown) as opening:
        yield opening


@pytest.fixture
def seen(opened: Callable[..., Seen]) -> Iterator[Seen]:
    seen = opened()
    yield seen
    seen.page.context.close()


def message_of(seen: Seen) -> Locator:
    """Return what the widget says of itself and of its calls."""
    return seen.page.frame_locator(".stage iframe").frame_locator("iframe").locator("h1, li")


def calls(seen: Seen) -> Locator:
    return seen.page.get_by_role("region", name="Calls of the widget")


def test_resources_are_listed_and_read_from_their_own_server(seen: Seen) -> None:
    seen.go("resources")
    page = seen.page
    for server in ("alpha", "beta"):
        expect(page.get_by_role("region", name=server, exact=True).get_by_role("heading")).to_have_text(
            server
        )

    page.get_by_role("region", name="beta", exact=True).get_by_role("link").filter(has_text="today").click()

    content = page.get_by_label("Content")
    expect(content).to_contain_text("beta says hello")
    expect(content).to_contain_text("notes://beta/today")
    page.get_by_role("region", name="alpha", exact=True).get_by_role("link").filter(has_text="today").click()
    expect(content).to_contain_text("alpha says hello")


def test_a_template_of_a_proxied_server_is_filled_in_and_read(seen: Seen) -> None:
    seen.go("resources")
    form = seen.page.get_by_role("form", name="notes://beta/of/{day}")
    form.get_by_label("day").fill("new year")
    form.get_by_role("button", name="Read").click()

    expect(seen.page.get_by_label("Content")).to_contain_text("beta remembers new year")


@pytest.mark.parametrize("server", ["alpha", "beta"])
def test_widget_belongs_to_its_server_and_calls_no_other(seen: Seen, server: str) -> None:
    seen.tool(f"{server}_show")
    seen.run()

    other = {"alpha": "beta", "beta": "alpha"}[server]
    expect(message_of(seen)).to_have_text(
        [
            f"The widget of {server}",
            f"other: there is no tool {other}_whoami",
            f"own: {server.upper()}",
        ]
    )
    row = calls(seen).get_by_role("row").nth(1)
    expect(row).to_contain_text(f"{server}_whoami")
    expect(row).to_contain_text('{"loud":true}')
    expect(row).to_contain_text("done")


def test_prompting_enabled_asks_before_each_widget_call(seen: Seen) -> None:
    seen.tool("alpha_show")
    seen.run()
    seen.page.get_by_label("Tool calls").select_option("ask")

    seen.run()
    asks = seen.call.get_by_role("alert")
    expect(asks).to_contain_text("alpha_whoami")
    expect(asks).to_contain_text('{"loud":true}')
    assert faults(seen) == []
    asks.get_by_role("button", name="Do not call it").click()
    expect(message_of(seen).last).to_have_text(
        "own: the person at the page did not allow this call of alpha_whoami"
    )
    expect(calls(seen).get_by_role("row").nth(1)).to_contain_text("not allowed")

    seen.page.reload()
    asks.get_by_role("button", name="Call it", exact=True).click()

    expect(message_of(seen).last).to_have_text("own: ALPHA")
    expect(calls(seen).get_by_role("row").nth(1)).to_contain_text("done")
    expect(calls(seen).get_by_role("row").nth(2)).to_contain_text("not allowed")


def test_a_template_needs_all_but_its_query(seen: Seen) -> None:
    seen.go("resources")
    form = seen.page.get_by_role("form", name="notes://alpha/lines/{day}{?first,last}")
    needed = [
        form.locator(".field", has=seen.page.get_by_label(name, exact=True)).locator(".label")
        for name in ("day", "first", "last")
    ]
    expect(needed[0]).to_contain_text("Required")
    expect(needed[1]).to_contain_text("Optional")
    expect(needed[2]).to_contain_text("Optional")
    read = form.get_by_role("button", name="Read", exact=True)

    read.click()
    expect(form.get_by_label("day")).to_be_focused()
    assert seen.page.evaluate("location.hash") == "#/resources"
    form.get_by_label("day").fill("Monday")
    form.get_by_label("last").fill("3")
    read.click()

    expect(seen.page.get_by_label("Content")).to_contain_text("alpha remembers lines 1 to 3 of Monday")
