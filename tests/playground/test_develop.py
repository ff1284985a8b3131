"""`runner dev`: changed files are reloaded, and no call notices."""

import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from playground_support import Shown, answer, ask
from support import until

from runner.server.develop import ended_at_once
from runner.settings.settings import Settings

pytestmark = [pytest.mark.kernel, pytest.mark.release]

# Of a machine that does much else.
PATIENCE_S = 180

FIRST = '''
from pathlib import Path
from fastmcp import FastMCP
mcp = FastMCP("growing")

@mcp.tool
def version() -> int:
    """Tell which."""
    return 1

@mcp.tool
def wait(username: str) -> str:
    """Wait until somebody writes a file."""
    import time
    home = Path(f"/tmp/{username}")
    (home / "begun").touch()
    while not (home / "input_files" / "go.txt").exists() and not (home / "go").exists():
        time.sleep(0.02)
    return "waited in version 1"

@mcp.tool
def go(username: str) -> str:
    """Let it go on."""
    (Path(f"/tmp/{username}") / "go").touch()
    return "gone"
'''


@pytest.fixture
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("developed")
    # Tools run as a user of their own where the runner is root.
    for path in (folder, *folder.parents[:2]):
        path.chmod(0o755)
    file = folder / "growing.py"
    file.write_text(FIRST)
    return file


def test_changed_file_is_reloaded(start: Callable[..., Shown], tools: Path) -> None:
    shown = start("dev", tools=tools)
    with shown.entered() as browser:
        before = answer(ask(browser, "tools/call", {"name": "version", "arguments": {}}))

        tools.write_text(FIRST.replace("return 1", "return 2"))
        assert shown.logs("growing.py changed: 3 tools reloaded")

        after = answer(ask(browser, "tools/call", {"name": "version", "arguments": {}}))

    assert before["structuredContent"] == {"result": 1}
    assert after["structuredContent"] == {"result": 2}


def test_running_call_ends_in_the_file_it_started_in(start: Callable[..., Shown], tools: Path) -> None:
    shown = start("dev", tools=tools)
    ended: list[str] = []

    def waiting() -> None:
        with shown.entered() as browser:
            result = answer(ask(browser, "tools/call", {"name": "wait", "arguments": {}}))
            ended.append(result["structuredContent"]["result"])

    call = threading.Thread(target=waiting)
    call.start()
    home = Path("/tmp") / shown.user
    assert until(lambda: (home / "begun").exists())

    tools.write_text(FIRST.replace("version 1", "version 2"))
    assert shown.logs("growing.py changed: 3 tools reloaded")
    with shown.entered() as browser:
        gone = answer(ask(browser, "tools/call", {"name": "go", "arguments": {}}))
    call.join()

    assert gone["structuredContent"] == {"result": "gone"}
    assert ended == ["waited in version 1"]


def test_faulty_file_changes_nothing_and_names_the_fault(start: Callable[..., Shown], tools: Path) -> None:
    shown = start("dev", tools=tools)
    tools.write_text(FIRST + "\nthis is not Python\n")
    assert shown.logs("growing.py changed and cannot be loaded: growing.py, line 27")

    with shown.entered() as browser:
        result = answer(ask(browser, "tools/call", {"name": "version", "arguments": {}}))

    assert result["structuredContent"] == {"result": 1}


def test_ctrl_c_ends_dev_server_with_running_calls_at_once(start: Callable[..., Shown], tools: Path) -> None:
    shown = start("dev", tools=tools)
    ends: dict[str, str] = {}
    open_streams = threading.Barrier(3, timeout=PATIENCE_S)

    def calling() -> None:
        with shown.entered() as browser:
            ends["call"] = ask(browser, "tools/call", {"name": "wait", "arguments": {}}).text

    def listening(name: str, path: str, headers: dict[str, str]) -> None:
        with shown.browser(**headers) as browser, browser.stream("GET", path) as stream:
            assert stream.status_code == 200
            open_streams.wait()
            # One that was cut off raises.
            ends[name] = "".join(stream.iter_text())

    with shown.browser() as browser:
        parameters = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        }
        accept = {"accept": "application/json, text/event-stream"}
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": parameters}
        opening = browser.post("/mcp", json=message, headers=accept)
        session = {"mcp-session-id": opening.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        browser.post(
            "/mcp",
            json={"jsonrpc": "2.0", "method": "notifications/initialized"},
            headers={**accept, **session},
        )
    threads = [
        threading.Thread(target=calling),
        threading.Thread(target=listening, args=("events", "/events", {})),
        threading.Thread(
            target=listening, args=("session", "/mcp", {**session, "accept": "text/event-stream"})
        ),
    ]
    for each in threads:
        each.start()
    open_streams.wait()
    assert until(lambda: (Path("/tmp") / shown.user / "begun").exists())

    shown.process.send_signal(signal.SIGINT)

    assert shown.process.wait(PATIENCE_S) == 130
    for each in threads:
        each.join(PATIENCE_S)
    assert set(ends) == {"call", "events", "session"}
    assert "E_CANCELLED" in ends["call"]
    # Nobody is promised any time, and nothing has to be cut off.
    assert "will be ended in" not in ends["call"]
    assert shown.logs(r"server is being stopped.*calls=1 drain_s=0\.0")
    output = "".join(shown.lines)
    assert "cut off" not in output
    assert "Traceback" not in output


def test_calls_get_their_configured_time_at_ctrl_c() -> None:
    assert ended_at_once(Settings()).drain_s == 0
    assert ended_at_once(Settings(drain_s=25)).drain_s == 25
