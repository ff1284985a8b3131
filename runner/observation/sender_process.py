"""The process that sends spans, as its host has it: started, told of calls, and started anew if it ends.

No call waits for it. What it does not take in time is dropped, and the log says how much.
"""

import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner.system.now_and_then import NowAndThen

__all__ = ["SenderProcess"]

log = logging.getLogger(__name__)

# What a pipe takes whole or not at all.
_LINE_BYTES = 4096
# Some 1,000 calls wait in it; a pipe of the system's own size has room for 60.
_PIPE_BYTES = 1 << 20
_RESTART_S = 5.0
_TOLD_EVERY_S = 60.0
_END_S = 10.0
_NOT_FOR_IT = (signal.SIGINT, signal.SIGTERM)
_COMPACT = json.JSONEncoder(separators=(",", ":"))


class SenderProcess:
    """Starts the sender, and hands on what it is to send.

    Args:
        words: What its program is told: the version of the runner, the level and the form of the log.
        command: How it is started, those words not included.
        clock: Says the time in seconds, from any beginning.
    """

    def __init__(
        self,
        *words: str,
        command: Sequence[str] = (sys.executable, "-P", "-m", "runner.observation.span_sender"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = (*command, *words)
        self._is_closed = False
        self._clock = clock
        self._started_at = clock()
        self._dropped = NowAndThen(every_s=_TOLD_EVERY_S)
        self._process = self._start()

    @property
    def pid(self) -> int:
        """Return the id of the process, which may have ended."""
        return self._process.pid

    def send(self, told: Mapping[str, Any]) -> None:
        """Hand on what is told of a call; nothing, once it is closed."""
        if self._is_closed:
            return
        line = _COMPACT.encode(told).encode() + b"\n"
        dropped = 0 if self._takes(line) else self._dropped.due(now=self._clock())
        if dropped:
            log.warning(
                "spans are dropped: the collector, or the process that sends them, does not keep up",
                extra={"calls": dropped},
            )

    def close(self) -> None:
        """Have what was handed on sent, if that takes no more than ten seconds, and end the process."""
        self._is_closed = True
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            log.warning("spans of the last calls could not be sent in time and are dropped")
            self._process.kill()
            self._process.wait()

    def _takes(self, line: bytes) -> bool:
        if len(line) > _LINE_BYTES or not self._runs() or self._process.stdin is None:
            return False
        try:
            return os.write(self._process.stdin.fileno(), line) == len(line)
        except OSError:
            # It is full, or has just ended.
            return False

    def _runs(self) -> bool:
        """Say whether it runs, after it was started anew if need be; not at once, if it ends and ends."""
        status = self._process.poll()
        if status is None:
            return True
        now = self._clock()
        if now - self._started_at < _RESTART_S:
            return False
        log.warning("the process that sends spans has ended and is started anew", extra={"status": status})
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._started_at = now
        try:
            self._process = self._start()
        except OSError as error:
            log.warning("the process that sends spans cannot be started", extra={"problem": error.strerror})
            return False
        return True

    def _start(self) -> "subprocess.Popen[bytes]":
        # A terminal and a service manager tell all processes to end; this one has still to send what it is
        # told. It has these signals blocked from its first instruction on, since it inherits that.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_FOR_IT)
        try:
            process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if process.stdin is not None:
            fd = process.stdin.fileno()
            os.set_blocking(fd, False)
            # A user who is not root has a limit for all pipes; what there is has to do then.
            try:
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            except PermissionError:
                log.debug("the pipe to the process that sends spans has the system's own size")
        return process
