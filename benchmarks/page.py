"""How soon a tool can be called in the Playground after its address was opened: `scripts/bench --page`.

Each time a browser that has been nowhere, so that nothing is in its cache. What is measured ends with the
picture in which Run can be pressed.
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from benchmarks.calm import Calm
from benchmarks.figures import table

__all__ = ["main"]

_ROOT = Path(__file__).resolve().parents[1]
_FILE = _ROOT / "sample_tools" / "hello.py"
_BROWSER = "chromium-headless-shell"
_PATIENCE_MS = 60_000
# Seen by the page itself: Run is there, can be pressed, and is drawn.
_READY = """() => {
  const run = document.querySelector('[data-press=run]');
  if (!run || run.disabled || run.getBoundingClientRect().height === 0) return false;
  return new Promise(done => requestAnimationFrame(() => setTimeout(() => done(true)))); }"""


def main() -> None:
    """Measure, and print the table. Exit status 1: Chromium is missing, or the server did not start."""
    parser = argparse.ArgumentParser(prog="scripts/bench --page", description=__doc__)
    parser.add_argument("--times", type=int, default=9, help="how often the page is opened (9)")
    parser.add_argument(
        "--patience", type=float, default=60.0, metavar="SECONDS", help="to wait for calm (60)"
    )
    options = parser.parse_args()
    program = shutil.which(_BROWSER)
    if program is None:
        sys.exit(f"the page is opened in a real browser: install the package {_BROWSER}")
    calm = Calm(options.patience)
    with _serving() as (base, lines), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        taken = [calm.measure(lambda: _opened(browser, base, lines)) for _ in range(options.times)]
        browser.close()
    figures = (statistics.median(taken), min(taken), max(taken))
    rows = [("until Run can be pressed", *(f"{each:.0f}" for each in figures))]
    print(table(("", "median ms", "least", "most"), rows))  # noqa: T201
    print(calm)  # noqa: T201


def _opened(browser: Browser, base: str, lines: Iterator[str]) -> float:
    """Return the milliseconds from the address to the picture, as the browser counts them."""
    # Each key opens once; the server prints the next.
    key = next(found[1] for found in (re.search(r"/\?key=(\S+)", line) for line in lines) if found)
    with browser.new_context(viewport={"width": 1280, "height": 800}) as context:
        page = context.new_page()
        began = time.monotonic()
        page.goto(f"{base}/?key={key}", wait_until="commit")
        page.wait_for_function(_READY, polling="raf", timeout=_PATIENCE_MS)
        return (time.monotonic() - began) * 1000


@contextmanager
def _serving() -> Iterator[tuple[str, Iterator[str]]]:
    with tempfile.TemporaryDirectory(prefix="toolcell-bench-") as folder:
        places = {
            "RUNNER_STATE_DIR": f"{folder}/state",
            "RUNNER_STORE": Path(folder, "store").as_uri(),
            "RUNNER_USER": "bench",
        }
        command = [sys.executable, "-m", "runner", "serve", str(_FILE), "--transport", "http", "--port", "0"]
        server = subprocess.Popen(
            command, cwd=_ROOT, env={**os.environ, **places}, stderr=subprocess.PIPE, text=True
        )
        try:
            assert server.stderr is not None  # noqa: S101 - it is a pipe
            lines = iter(server.stderr.readline, "")
            served = (re.search(r"serving .* at (http://\S+)/mcp", line) for line in lines)
            base = next((found[1] for found in served if found), None)
            if base is None:
                sys.exit("the server ended before it served")
            yield base, lines
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
