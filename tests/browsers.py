"""A real browser for pages: Chromium of the distribution, with or without what draws on a screen.

The shell is the same engine without windows, and opens a page in a fifth of the time. Where a page tries to
get something out of the browser, the test takes the whole program, as people run it.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from playwright.sync_api import Browser, expect, sync_playwright

__all__ = ["PATIENCE_MS", "SHELL", "WHOLE", "launched"]

SHELL = "chromium-headless-shell"
WHOLE = "chromium"

_FLAGS = ("--no-sandbox", "--disable-gpu")

# The machine may be busy with other tests.
PATIENCE_MS = 180_000
expect.set_options(timeout=PATIENCE_MS)


@contextmanager
def launched(program: str = SHELL, *, flags: Sequence[str] = ()) -> Iterator[Browser]:
    """Run a browser for as long as the block lasts; Playwright keeps the thread's event loop meanwhile."""
    found = shutil.which(program)
    assert found, f"pages are tested in a real browser: install the package {program}"
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=[*_FLAGS, *flags])
        try:
            yield running
        finally:
            running.close()
