"""Requests saved by name, shared and exported; history with pins.

Source: `docs/widgets.md`.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playground_support import Shown
from playwright.sync_api import Locator
from web_support import WEB_TOOLS, Seen, browsing, expect, faults

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]

RUNNER = str(Path(sys.executable).with_name("runner"))


@pytest.fixture(scope="module")
def opened(start: Callable[..., Shown]) -> Iterator[Callable[..., Seen]]:
    with browsing(start(tools=WEB_TOOLS)) as opening:
        yield opening


@pytest.fixture
def seen(opened: Callable[..., Seen]) -> Iterator[Seen]:
    seen = opened(permissions=["clipboard-read", "clipboard-write"])
    yield seen
    seen.page.context.close()


def save(seen: Seen, tool: str, arguments: str, name: str) -> None:
    seen.tool(tool)
    seen.write(arguments)
    main = seen.page.get_by_role("main")
    main.get_by_role("button", name=re.compile("^Saved?$")).click()
    form = seen.page.get_by_role("group", name="Save this request")
    form.get_by_label("Name").fill(name)
    form.get_by_role("button", name="Save", exact=True).click()
    expect(main.get_by_role("button", name="Saved")).to_be_visible()


def row(seen: Seen, name: str) -> Locator:
    listed = seen.page.get_by_role("region", name="Saved")
    return listed.get_by_role("listitem").filter(has=seen.page.get_by_role("button", name=name)).first


def downloaded(seen: Seen, button: str) -> str:
    with seen.page.expect_download() as download:
        seen.page.get_by_role("button", name=button).click()
    return Path(download.value.path()).read_text()


def test_requests_are_saved_by_name_and_reopened(seen: Seen) -> None:
    save(seen, "publish", '{"text": "first"}', "One")
    save(seen, "publish", '{"text": "second"}', "Two")
    seen.page.reload()
    seen.go("saved")
    expect(seen.page.get_by_role("region", name="Saved").get_by_role("listitem")).to_have_count(2)
    assert faults(seen) == []

    row(seen, "One").get_by_role("button", name="Open").click()

    expect(seen.page.locator("h1")).to_have_text("publish")
    expect(seen.page.get_by_label("Arguments as JSON")).to_have_value(re.compile('"first"'))


def test_saved_requests_go_to_another_browser_as_a_file(
    seen: Seen, opened: Callable[..., Seen], tmp_path: Path
) -> None:
    save(seen, "publish", '{"text": "shared"}', "Shared")
    seen.go("saved")
    text = downloaded(seen, "Save as file")
    row(seen, "Shared").get_by_role("button", name="Delete").click()
    expect(seen.page.get_by_role("main")).to_contain_text("Nothing is saved yet")

    other = opened()
    file = tmp_path / "requests.json"
    file.write_text(text)
    other.go("saved")
    other.page.get_by_label("Import").set_input_files(file)
    expect(row(other, "Shared")).to_be_visible()
    other.go("history")
    expect(other.page.get_by_role("main")).to_contain_text("No calls yet")
    other.page.context.close()


@pytest.mark.parametrize(
    "text", ["no json", "{}", '{"format": "toolcell-requests", "requests": [{"kind": "evil"}]}']
)
def test_invalid_requests_file_is_refused(seen: Seen, tmp_path: Path, text: str) -> None:
    file = tmp_path / "requests.json"
    file.write_text(text)
    seen.go("saved")

    seen.page.get_by_label("Import").set_input_files(file)

    expect(seen.page.get_by_role("alert")).to_be_visible()
    expect(seen.page.get_by_role("main")).to_contain_text("Nothing is saved yet")


def ran(made: str, folder: Path) -> str:
    """Run a file of tests made by the page, and return the output of pytest."""
    file = folder / "test_requests.py"
    file.write_text(
        made.replace('"runner"', json.dumps(RUNNER)).replace('"FILE"', json.dumps(str(WEB_TOOLS)))
    )
    options = ["-q", "-n", "0", "-p", "no:randomly", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, str(file)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    return done.stdout + done.stderr


def test_saved_requests_run_as_pytest(seen: Seen, tmp_path: Path) -> None:
    save(seen, "publish", '{"text": "hello"}', "good")
    save(seen, "broken", "{}", "bad")
    seen.go("saved")
    made = downloaded(seen, "Save as pytest")

    output = ran(made, tmp_path)

    assert "1 failed, 1 passed" in output, output
    assert "FAILED test_requests.py::test_bad_answers" in output


def test_a_call_exported_as_pytest_expects_its_result(seen: Seen, tmp_path: Path) -> None:
    seen.tool("publish")
    seen.write('{"text": "hello"}')
    seen.run()
    seen.go("history")
    seen.page.get_by_role("link", name="publish").first.click()
    seen.page.get_by_role("tab", name="pytest").click()
    made = seen.page.get_by_role("region", name="Arguments").locator("pre").last.inner_text()

    other = made.replace("test_publish_answers", "test_other_result").replace("sent 5", "sent 6")
    output = ran(f"{made}\n\n{other}", tmp_path)

    assert "1 failed, 1 passed" in output, output
    assert "FAILED test_requests.py::test_other_result" in output


def test_call_is_exported_in_every_form(seen: Seen) -> None:
    seen.tool("publish")
    seen.write('{"text": "it\'s"}')
    seen.run()
    seen.go("history")
    seen.page.get_by_role("link", name="publish").first.click()
    forms = seen.page.get_by_role("tablist", name="Forms")
    expect(forms.get_by_role("tab").first).to_be_visible()

    exports = {}
    for tab in forms.get_by_role("tab").all():
        tab.click()
        exports[tab.inner_text()] = (
            seen.page.get_by_role("region", name="Arguments").locator("pre").last.inner_text()
        )

    assert list(exports) == ["runner call", "curl", "Python", "pytest"]
    compile(exports["Python"], "made", "exec")
    compile(exports["pytest"], "made", "exec")
    curl = subprocess.run(
        ["bash", "-c", exports["curl"]], capture_output=True, text=True, check=True, timeout=60
    )
    assert "sent 4 characters" in curl.stdout


def test_history_search_lists_pinned_calls_first(seen: Seen) -> None:
    for text in ("alpha", "beta", "gamma"):
        seen.tool("publish")
        seen.write(json.dumps({"text": text}))
        seen.run()
    seen.go("history")
    rows = seen.page.get_by_role("table", name="Calls").get_by_role("row")
    expect(rows).to_have_count(4)

    seen.page.get_by_label("Search calls").fill("beta")
    expect(rows).to_have_count(2)
    seen.page.get_by_role("button", name="Pin", exact=True).click()
    seen.page.get_by_label("Search calls").fill("")

    expect(rows.nth(1)).to_contain_text("beta")
    assert faults(seen) == []
    seen.page.reload()
    expect(rows.nth(1)).to_contain_text("beta")
    expect(rows.nth(1).get_by_role("button", name="Pinned")).to_be_visible()


def test_the_same_curl_works_in_the_era_with_sessions(seen: Seen) -> None:
    seen.go("session")
    seen.page.get_by_label("Protocol version").select_option("2025-11-25")
    seen.tool("publish")
    seen.write('{"text": "handshake"}')
    seen.run()
    seen.go("history")
    seen.page.get_by_role("link", name="publish").first.click()
    seen.page.get_by_role("tab", name="curl").click()

    made = seen.page.get_by_role("region", name="Arguments").locator("pre").last.inner_text()
    done = subprocess.run(["bash", "-c", made], capture_output=True, text=True, check=True, timeout=180)

    assert "sent 9 characters" in done.stdout
