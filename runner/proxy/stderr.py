"""Standard error of a confined server: passed on to ours, its tail kept for a message.

Source: MCP specification 2025-11-25, "Transports, stdio": a server may log there.
"""

import asyncio
import contextlib
import logging
import os
import sys
import time
from typing import TextIO

from runner.proxy.server_log import ServerLog, log_budget, plain_line
from runner.system.now_and_then import NowAndThen
from sandbox.host.paced_pipe import PacedPipe
from sandbox.token_bucket import TokenBucket

__all__ = ["DIVIDER", "LastWords"]

log = logging.getLogger(__name__)

_KEPT_BYTES = 2000
_WAIT_S = 1.0
# A pipe holds this much at most, unless its owner is privileged.
_MOST_LEFT_PIECES = 16


DIVIDER = " / "
"""What stands between the last lines of a process, where they are told as one."""


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
        """Return the last of what was said, once the process has ended or shortly after."""
        self.file.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), _WAIT_S)
        lines = map(plain_line, self._tail.decode("utf-8", "replace").splitlines())
        return DIVIDER.join(line.strip() for line in lines if line.strip())[-_KEPT_BYTES:]

    def _take(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-_KEPT_BYTES:]
        now = time.monotonic()
        self._pass_on(self._log.passed(data, now=now))
        if self._log.dropped and self._dropping.due(now=now):
            self._tell_of_dropped()

    def _pass_on(self, lines: str) -> None:
        # Nobody is left to tell where our own standard error has gone, or was never there.
        if sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(lines)

    def _tell_of_dropped(self) -> None:
        count, self._log.dropped = self._log.dropped, 0
        facts = {
            "server": self._log.server,
            "bytes": count,
            "passed_on_per_s": self._log.budget.per_s,
        }
        log.warning("server stderr rate limited", extra=facts)

    def _end(self) -> None:
        if self._ended.is_set():
            return
        self._ended.set()
        try:
            self._pipe.close(most_pieces=_MOST_LEFT_PIECES)
        finally:
            os.close(self._reader)
        self._pass_on(self._log.rest(now=time.monotonic()))
        if self._log.dropped:
            self._tell_of_dropped()
