"""A real browser for pages: the distribution's Chromium, as headless shell or as whole program.

The shell is the same engine without windows, and opens a page in a fifth of the time. If a page tries to
exfiltrate something from the browser, the test uses the whole program, as people run it.
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
    """Run a browser until the block ends; Playwright occupies the thread's event loop meanwhile."""
    found = shutil.which(program)
    assert found, f"pages are tested in a real browser: install the package {program}"
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=[*_FLAGS, *flags])
        try:
            yield running
        finally:
            running.close()
