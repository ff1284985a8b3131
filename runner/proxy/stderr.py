"""Standard error of a confined server: its lines in our log, and its tail for a message.

A server may write anything, in any amount and form. So each of its lines gets a prefix with its name, which
no line of ours has, is escaped for terminals and cut at a length; and the lines of one server are rate
limited.

Source: MCP specification 2025-11-25, "Transports, stdio": a server may log there.
"""

import asyncio
import contextlib
import logging
import os
import re
import sys
import time
from dataclasses import dataclass, field
from typing import TextIO

from runner.formats.terminal_text import one_line
from runner.system.now_and_then import NowAndThen
from sandbox.host.paced_pipe import PacedPipe
from sandbox.token_bucket import TokenBucket

__all__ = ["DIVIDER", "LastWords", "ServerLog", "log_budget", "plain_line"]

log = logging.getLogger(__name__)

_LINE_BYTES = 4096
# Of a line, in bytes of the budget: so 2,600 lines may come at once.
_LEAST_COST = 100
_ENDS = re.compile(rb"[\r\n]+")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def log_budget() -> TokenBucket:
    """Return the budget in bytes for the output of all processes of one server.

    Tracebacks of a bad start fit in what may come at once. Afterwards it is what journald, by default, takes
    of a service: 10,000 messages in 30 seconds, of two hundred bytes each.
    """
    return TokenBucket(at_once=256 * 1024, per_s=64 * 1024)


@dataclass(slots=True, kw_only=True, eq=False)
class ServerLog:
    """Output of one process.

    Attributes:
        server: Name of the server.
        budget: How much of it is passed on.
        dropped: How many of its bytes were not; the reporter of them resets it to 0.
    """

    server: str
    budget: TokenBucket = field(default_factory=log_budget)
    dropped: int = 0
    _lead: str = field(init=False)
    _partial: bytes = b""
    _partial_bytes: int = 0

    def __post_init__(self) -> None:
        self._lead = f"stderr of {plain_line(self.server)}: "

    def passed(self, data: bytes, *, now: float) -> str:
        """Return the lines to write for a piece of its output; bytes beyond the budget are counted.

        It takes no longer than the budget has lines, whatever the piece holds: behind the first line that
        does not fit nothing of it is looked at.
        """
        lines: list[str] = []
        start = 0
        for ends in _ENDS.finditer(data):
            self._begin(data[start : ends.start()])
            start = ends.end()
            if not self._end(lines, now):
                self.dropped += len(data) - start
                return "".join(lines)
        self._begin(data[start:])
        return "".join(lines)

    def _begin(self, part: bytes) -> None:
        self._partial += part[: _LINE_BYTES - len(self._partial)]
        self._partial_bytes += len(part)

    def _end(self, lines: list[str], now: float) -> bool:
        """Add the line that has begun to what is written; return whether it fitted in the budget."""
        start, size = self._partial, self._partial_bytes
        self._partial, self._partial_bytes = b"", 0
        if not size:
            return True
        text = plain_line(start.decode("utf-8", "replace"))
        cut = f"… ({size} bytes)" if size > len(start) else ""
        line = f"{self._lead}{text}{cut}\n"
        # A short line costs more than its length, and one of which nothing is seen too: each takes its time.
        if not self.budget.takes(max(_LEAST_COST, len(start), len(line.encode())), now=now):
            self.dropped += size
            return False
        if text.strip():
            lines.append(line)
        return True


def plain_line(text: str) -> str:
    """Return a text on one line, without colours, and with escapes for what else cannot be seen."""
    return one_line(_COLOURS.sub("", text))


_KEPT_BYTES = 2000
_WAIT_S = 1.0
# A pipe holds this much at most, unless its owner is privileged.
_MOST_LEFT_PIECES = 16


DIVIDER = " / "
"""Separator of the last lines of a process when they are joined."""


class LastWords:
    """Reads the standard error of one process, in the running loop, until the block ends.

    Args:
        server: Name of the server, which each of its lines that is passed on begins with.
        budget: How much is passed on; None for a budget of its own.

    Attributes:
        file: Where the process writes to; closed here once the process has it.
    """

    def __init__(self, server: str, budget: TokenBucket | None = None) -> None:
        self._tail = b""
        self._log = ServerLog(server=server, budget=budget or log_budget())
        self._dropping = NowAndThen()
        self._reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(writer, True)
        self.file: TextIO = open(writer, "w", encoding="utf-8")  # noqa: SIM115 - closed with the block
        self._pipe = PacedPipe(self._reader, self._take, end=self._end)
        self._ended = asyncio.Event()

    def __enter__(self) -> "LastWords":
        return self

    def __exit__(self, *_raised: object) -> None:
        self.file.close()
        self._end()

    async def wait(self) -> str:
        """Return the last output, once the process has ended or shortly after."""
        self.file.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), _WAIT_S)
        lines = map(plain_line, self._tail.decode("utf-8", "replace").splitlines())
        return DIVIDER.join(line.strip() for line in lines if line.strip())[-_KEPT_BYTES:]

    def _take(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-_KEPT_BYTES:]
        self._pass_on(data)

    def _pass_on(self, data: bytes, *, at_last: bool = False) -> None:
        now = time.monotonic()
        lines = self._log.passed(data, now=now)
        # Our own standard error may be closed, or None.
        if sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(lines)
        if self._log.dropped and (at_last or self._dropping.due(now=now)):
            count, self._log.dropped = self._log.dropped, 0
            facts = {"server": self._log.server, "bytes": count, "passed_on_per_s": self._log.budget.per_s}
            log.warning("server stderr rate limited", extra=facts)

    def _end(self) -> None:
        if self._ended.is_set():
            return
        self._ended.set()
        try:
            self._pipe.close(most_pieces=_MOST_LEFT_PIECES)
        finally:
            os.close(self._reader)
        # Its last line may have no line break.
        self._pass_on(b"\n", at_last=True)
