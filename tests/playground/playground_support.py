"""A server with a Playground, and browsers of people who know its key or do not."""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
from support import until

PREFIX = "io.modelcontextprotocol/"
ENVELOPE = {
    PREFIX + "protocolVersion": "2026-07-28",
    PREFIX + "clientInfo": {"name": "test", "version": "1"},
    PREFIX + "clientCapabilities": {},
}

TOOLS = '''
import os
import time

from fastmcp import Context, FastMCP
from fastmcp.server.dependencies import get_http_request

mcp = FastMCP("shown")


@mcp.tool
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


@mcp.tool
def headers() -> dict:
    """Return what the tool sees of the request."""
    return {"results": dict(get_http_request().headers)}


@mcp.tool
def forbidden(username: str) -> str:
    """Write where it may not."""
    try:
        open("/etc/toolcell-forbidden", "w")
    except OSError:
        pass
    return "went on"
'''


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A running server.

    Attributes:
        base: Its address.
        first_key: The start key that it printed at its start, where there is one.
        user: Whom it serves.
        log: Its output at the start.
        process: The server itself.
        lines: What it says from then on.
    """

    base: str
    first_key: str | None
    user: str
    log: str
    process: "subprocess.Popen[str]"
    lines: list[str] = field(default_factory=list)
    taken: list[int] = field(default_factory=lambda: [0])

    @property
    def key(self) -> str | None:
        """The start key that opens next: each opens once, and then the server prints another."""
        if self.first_key is None:
            return None
        # Read once printed: who is sent on by the last key may be here before its successor.
        assert until(lambda: len(self.keys) > self.taken[0])
        key = self.keys[self.taken[0]]
        self.taken[0] += 1
        return key

    @property
    def keys(self) -> list[str]:
        """All start keys that were printed."""
        printed = [re.search(r"Playground: \S+?/\?key=(\S+)", line) for line in list(self.lines)]
        return [str(self.first_key), *(found[1] for found in printed if found)]

    def logs(self, pattern: str) -> bool:
        """Wait until it says something; False if it does not."""
        return until(lambda: any(re.search(pattern, line) for line in self.lines))

    def browser(self, **headers: str) -> httpx2.Client:
        """Return a browser that has not been here."""
        return httpx2.Client(base_url=self.base, headers=headers, timeout=180)

    @contextmanager
    def entered(self) -> Iterator[httpx2.Client]:
        """Give a browser whose user opened the printed address."""
        with self.browser() as browser:
            assert browser.get(f"/?key={self.key}").status_code == 303
            yield browser


def ask(browser: httpx2.Client, method: str, params: Mapping[str, Any], **headers: str) -> httpx2.Response:
    """Send one MCP request the way the page sends it."""
    meta = {**ENVELOPE, **params.get("_meta", {})}
    named = {"mcp-name": str(params["name"])} if "name" in params else {}
    return browser.post(
        "/play/mcp",
        json={"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}},
        headers={
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": method,
            **named,
            **headers,
        },
    )


def answer(response: httpx2.Response) -> dict[str, Any]:
    """Return the result in an answer, of whichever form."""
    assert response.status_code == 200, response.text
    text = response.text
    if response.headers["content-type"].startswith("text/event-stream"):
        text = next(line for line in text.splitlines() if line.startswith("data: {")).removeprefix("data: ")
    result: dict[str, Any] = json.loads(text)["result"]
    return result
