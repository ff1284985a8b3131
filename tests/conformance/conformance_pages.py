"""HTML of tools as it is displayed by default: `sanitize_html`, by the Playground in a real browser."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import conformance_path  # noqa: F401  (first: tests import each other by their folders)
from playground_support import Shown
from somebody import somebody
from support import ROOT, playground_address, stop
from web_support import browsing

__all__ = ["OPERATIONS"]

TOOL = '''
from base64 import b64encode

from fastmcp import FastMCP

mcp = FastMCP("pages")


@mcp.tool
def page(html: str) -> dict:
    """Make a page."""
    made = {"name": "page.html", "b64": b64encode(html.encode()).decode(), "mime": "text/html"}
    return {"results": None, "artifacts": [made], "display": {"open_canvas": True}}
'''


@contextmanager
def playground() -> Iterator[Shown]:
    """Run `runner serve` with a tool that makes pages, and its Playground."""
    with tempfile.TemporaryDirectory() as name, somebody() as user:
        folder = Path(name)
        (folder / "pages.py").write_text(TOOL)
        variables = {key: value for key, value in os.environ.items() if not key.startswith("RUNNER_")}
        own = {"RUNNER_STATE_DIR": str(folder / "state"), "RUNNER_STORE": "memory:", "RUNNER_USER": user}
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "runner.cli.app",
                "serve",
                "pages.py",
                "--transport",
                "http",
                "--port",
                "0",
            ],
            env={**variables, **own, "PYTHONPATH": str(ROOT)},
            cwd=folder,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            base, key, log = playground_address(process)
            yield Shown(base=base, first_key=key, user=user, log=log, process=process)
        finally:
            stop(process)


def displayed(html: str) -> str:
    """The document that a person sees, as markup."""
    with playground() as shown, browsing(shown) as opened:
        seen = opened()
        seen.tool("page")
        seen.write(json.dumps({"html": html}))
        seen.run()
        paper = seen.page.frame_locator("iframe.paper").frame_locator("iframe")
        return paper.locator("body").inner_html()


def sanitize_html(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sanitised page; in its own thread, since a browser brings an event loop."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="browser") as thread:
        return {"output": thread.submit(displayed, case["html"]).result()}


OPERATIONS = {"sanitize_html": sanitize_html}
