"""Servers that a page connects to: several side by side, each named, each with its state and why.

Source: `docs/playground.md`.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playground_support import Shown
from playwright.sync_api import Locator
from web_everything import connect, developing, everything, python_server
from web_support import Seen, expect, faults

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]

REMOTE = Path(__file__).with_name("web_remote.py")


@pytest.fixture(scope="module")
def opened(start: Callable[..., Shown]) -> Iterator[Callable[..., Seen]]:
    with developing(start) as (_, opening):
        yield opening


@pytest.fixture
def seen(opened: Callable[..., Seen]) -> Iterator[Seen]:
    seen = opened()
    yield seen
    seen.page.context.close()


def card(seen: Seen, name: str) -> Locator:
    return seen.page.get_by_role("region", name=name, exact=True)


@pytest.fixture
def over_http(tmp_path: Path) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """A server of somebody else at an address; give that, and its process."""
    file = tmp_path / "away.py"
    file.write_text(
        "from fastmcp import FastMCP\n"
        "mcp = FastMCP('away', version='7')\n\n\n"
        "@mcp.tool\n"
        "def shout(text: str) -> str:\n"
        "    return text.upper()\n"
    )
    process = serving(file, 0)
    try:
        yield address_of(process), process
    finally:
        end(process)


def end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate(timeout=60)


def serving(file: Path, port: int) -> "subprocess.Popen[str]":
    said = {"RUNNER_STATE_DIR": str(file.parent / "state"), "RUNNER_STORE": (file.parent / "store").as_uri()}
    command = [sys.executable, "-m", "runner.cli.app", "serve", str(file), "--transport", "http"]
    return subprocess.Popen(
        [*command, "--port", str(port)], stderr=subprocess.PIPE, text=True, env={**os.environ, **said}
    )


def address_of(process: "subprocess.Popen[str]") -> str:
    assert process.stderr is not None
    line = next(line for line in process.stderr if line.startswith("serving "))
    return line.split(" at ")[1].strip()


def join(seen: Seen, name: str, url: str) -> None:
    seen.go("servers")
    form = card(seen, "Connect to a server")
    form.get_by_label("Address", exact=True).first.check()
    form.get_by_label("Name").fill(name)
    form.get_by_role("textbox", name="Address").fill(url)
    form.get_by_role("button", name="Connect", exact=True).click()


def test_servers_stand_side_by_side_and_each_answers_for_itself(
    seen: Seen, over_http: tuple[str, "subprocess.Popen[str]"]
) -> None:
    url, _ = over_http
    connect(seen, "alpha", *python_server(REMOTE, "alpha"))
    join(seen, "away", url)
    expect(card(seen, "away").get_by_role("status")).to_have_text("up")

    seen.tool("shout")
    seen.write('{"text": "hello"}')
    expect(seen.run()).to_contain_text("HELLO")
    seen.page.get_by_role("combobox", name="Server").select_option("alpha")
    seen.tool("whoami")
    expect(seen.run()).to_contain_text("alpha")

    seen.go("history")
    calls = seen.page.get_by_role("table", name="Calls")
    expect(calls.get_by_role("row").nth(1)).to_contain_text("alpha")
    expect(calls.get_by_role("row").nth(2)).to_contain_text("away")
    seen.go("servers")
    assert faults(seen) == []


def test_a_server_that_dies_is_named_with_why_and_comes_back(
    seen: Seen, over_http: tuple[str, "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    url, process = over_http
    join(seen, "away", url)
    expect(card(seen, "away").get_by_role("status")).to_have_text("up")

    process.send_signal(signal.SIGKILL)
    process.wait()

    expect(card(seen, "away").get_by_role("status")).to_have_text("down")
    expect(card(seen, "away").get_by_role("alert").first).to_contain_text("cannot be reached")
    assert faults(seen) == []
    seen.go("call")
    expect(seen.page.get_by_role("alert").filter(has_text="away does not answer")).to_be_visible()
    revived = serving(tmp_path / "away.py", int(url.split(":")[2].split("/")[0]))
    try:
        address_of(revived)
        seen.go("servers")
        card(seen, "away").get_by_role("button", name="Connect again").click()
        expect(card(seen, "away").get_by_role("status")).to_have_text("up")
        seen.tool("shout")
    finally:
        end(revived)


def test_a_command_that_does_not_speak_mcp_is_down_and_says_so(seen: Seen) -> None:
    seen.go("servers")
    form = card(seen, "Connect to a server")
    form.get_by_label("Command", exact=True).first.check()
    form.get_by_label("Name").fill("wrong")
    form.get_by_role("textbox", name="Command").fill(
        f"{sys.executable} -c 'import sys; sys.exit(\"no such luck\")'"
    )
    form.get_by_role("button", name="Connect", exact=True).click()

    expect(card(seen, "wrong").get_by_role("status")).to_have_text("down")
    expect(card(seen, "wrong").get_by_role("alert").first).to_contain_text("wrong")
    seen.go("call")
    expect(seen.page.get_by_role("alert").filter(has_text="wrong does not answer")).to_be_visible()
    assert faults(seen) == []


def test_an_mcp_json_is_pasted(seen: Seen) -> None:
    entry = {"command": sys.executable, "args": [str(REMOTE), "beta"]}
    seen.go("servers")
    form = card(seen, "Connect to a server")
    form.get_by_text("Or paste an mcp.json").click()
    form.get_by_role("textbox", name="Or paste an mcp.json").fill(json.dumps({"mcpServers": {"beta": entry}}))
    form.get_by_role("button", name="Take over").click()

    expect(card(seen, "beta").get_by_role("status")).to_have_text("up")


def test_a_server_is_closed(seen: Seen) -> None:
    connect(seen, "alpha", *python_server(REMOTE, "alpha"))

    card(seen, "alpha").get_by_role("button", name="Close").click()

    expect(card(seen, "alpha")).to_have_count(0)
    expect(card(seen, "gallery").get_by_text("You look at it")).to_be_visible()


def test_images_of_another_server_have_the_viewers_of_files(seen: Seen) -> None:
    everything(seen)
    seen.tool("get-tiny-image")
    result = seen.run()

    result.get_by_role("button", name="Show").first.click()

    expect(result.locator("img.picture")).to_be_visible()


def test_a_question_of_a_server_that_is_not_looked_at_is_marked_at_history(seen: Seen) -> None:
    connect(seen, "alpha", *python_server(REMOTE, "alpha"))
    choice = seen.page.get_by_role("combobox", name="Server", exact=True)
    marked = seen.page.get_by_role("link", name="History waits for your answer")
    choice.select_option("gallery")
    seen.tool("ask")
    seen.page.get_by_role("button", name="Run").first.click()
    expect(seen.page.get_by_role("button", name="Answer")).to_be_visible()
    expect(marked).to_have_count(0)

    choice.select_option("alpha")
    expect(marked).to_be_visible()
    marked.click()

    expect(seen.page.locator("h1")).to_have_text("ask")
    # It is not the server that is looked at.
    expect(seen.page.get_by_role("main").locator("header").first).to_contain_text("(gallery ")
    expect(marked).to_have_count(0)
    seen.page.get_by_role("button", name="Decline").click()
    seen.ended()
    seen.go("files")
    expect(marked).to_have_count(0)


def test_two_results_of_two_servers_are_compared(seen: Seen) -> None:
    connect(seen, "alpha", *python_server(REMOTE, "alpha"))
    connect(seen, "beta", *python_server(REMOTE, "beta"))
    seen.tool("whoami")
    seen.run()
    seen.go("history")
    calls = seen.page.get_by_role("table", name="Calls")
    calls.get_by_label("Run this call of whoami on another server").select_option("alpha")
    expect(calls.get_by_role("row").nth(1)).to_contain_text("alpha")
    expect(calls.get_by_role("row").nth(1)).to_contain_text("done")

    for box in calls.get_by_role("checkbox").all()[:2]:
        box.check()

    difference = seen.page.get_by_role("region", name="Difference")
    expect(difference.locator("h2")).to_contain_text("(beta")
    expect(difference.locator("h2")).to_contain_text("(alpha")
    expect(difference.locator("ins")).to_contain_text("alpha")
    expect(difference.locator("del")).to_contain_text("beta")
    expect(difference).to_be_in_viewport()
    assert faults(seen) == []
    difference.get_by_role("button", name="Close").click()
    expect(difference).to_have_count(0)
    expect(calls.get_by_role("checkbox", checked=True)).to_have_count(0)
    calls.get_by_role("checkbox").first.check()
    expect(seen.page.get_by_text("Choose a second call")).to_be_visible()


def test_a_server_behind_the_proxy_has_the_version_that_it_speaks_itself(seen: Seen) -> None:
    everything(seen)

    box = card(seen, "everything")
    # The page and the proxy speak another: this is no server of 2026.
    expect(box).to_contain_text("MCP 2025-11-25")
    expect(box).not_to_contain_text("2026-07-28")
    box.get_by_text("What the server can do").click()
    expect(box.locator("pre")).to_contain_text('"tasks"')
    seen.go("session")
    facts = card(seen, "Server").locator("dl")
    expect(facts).to_contain_text("This page and the proxy speak2026-07-28")
    expect(facts).to_contain_text("The proxy and the server speak2025-11-25")
    expect(card(seen, "Server").locator("details", has_text="What the server can do")).to_contain_text(
        '"tasks"'
    )
    assert faults(seen) == []


def test_a_template_needs_all_but_its_query(seen: Seen) -> None:
    connect(seen, "alpha", *python_server(REMOTE, "alpha"))
    seen.go("resources")
    form = seen.page.get_by_role("form", name="notes://lines/{day}{?first,last}")
    needed = [
        form.locator(".field", has=seen.page.get_by_label(name, exact=True)).locator(".label")
        for name in ("day", "first", "last")
    ]
    expect(needed[0]).to_contain_text("required")
    expect(needed[1]).to_contain_text("optional")
    expect(needed[2]).to_contain_text("optional")
    read = form.get_by_role("button", name="Read", exact=True)

    read.click()
    expect(form.get_by_label("day")).to_be_focused()
    assert seen.page.evaluate("location.hash") == "#/resources"
    form.get_by_label("day").fill("Monday")
    form.get_by_label("last").fill("3")
    read.click()

    expect(seen.page.get_by_label("Content")).to_contain_text("alpha remembers lines 1 to 3 of Monday")
