"""Progress and messages of `runner call` on standard error. A `runner.steps.listener.Client`."""

import sys
from collections.abc import Mapping
from typing import Any, TextIO

from runner.formats.terminal_text import one_line
from runner.steps.listener import MESSAGE, PROGRESS, ClientRefusal
from runner.system.terminal import draw

__all__ = ["TOKEN", "Terminal"]

TOKEN = "terminal"  # noqa: S105 - a progress token, no secret
"""The progress token of a call from a shell: with it the call reports its progress."""

_WIDTH = 24
_METHOD_NOT_FOUND = -32601


class Terminal:
    """Shows progress, messages and notices; a bar where standard error is a terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._bar = False

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Show one notification."""
        if method == PROGRESS:
            self._progress(params)
        elif method == MESSAGE:
            data = params.get("data")
            text = data.get("msg") if isinstance(data, Mapping) else data
            self._line(f"{params.get('level', 'info')}: {_plain(text)}")

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Refuse: a shell command answers no questions of a tool."""
        raise ClientRefusal(_METHOD_NOT_FOUND, f"`runner call` cannot answer {method}; use an MCP client")

    def printed(self, output: str) -> None:
        """Show what the tool has printed, line by line."""
        for line in output.splitlines():
            self._line(_plain(line))

    def close(self) -> None:
        """End the bar's line, if there is one."""
        if self._bar:
            self._stream.write("\n")
            self._bar = False
        self._stream.flush()

    def _progress(self, params: Mapping[str, Any]) -> None:
        value, total, message = params["progress"], params.get("total"), _plain(params.get("message"))
        if not total:
            self._line(message or f"{value:g}")
            return
        share = min(1.0, max(0.0, value / total))
        if not self._live:
            self._line(f"{share:4.0%} {message}".rstrip())
            return
        bar = ("#" * round(share * _WIDTH)).ljust(_WIDTH, ".")
        draw(f"\r\x1b[K[{bar}] {share:4.0%} {message[:100]}", self._stream)
        self._stream.flush()
        self._bar = True

    def _line(self, text: str) -> None:
        self.close()
        self._stream.write(text + "\n")
        self._stream.flush()


def _plain(text: object) -> str:
    return one_line(str(text or ""))
