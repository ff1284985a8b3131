"""The processes of servers: started, watched by a descriptor whoever's children they are, and ended.

Source: pidfd_open(2), waitid(2) on P_PIDFD, signal(7).
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from runner.formats.terminal_text import one_line
from runner.up.bounds import ServerBounds, kill_group
from runner.up.plan import Server

__all__ = ["Life", "last_line", "start", "trim"]

_LOG_BYTES = 16 << 20
_TAIL_BYTES = 4096
_LINE = 300


@dataclass(slots=True, eq=False)
class Life:
    """One process of a server, from its start, or from when it was found, to its end.

    Attributes:
        process: It.
        pidfd: A descriptor of it, which nobody else's number can take the place of.
    """

    process: psutil.Process
    pidfd: int
    _pipe: IO[bytes] | None = None
    _told: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def found(cls, process: psutil.Process) -> "Life | None":
        """Take over a process that a supervisor before us has started; None if it has just ended."""
        try:
            pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return None
        if not process.is_running():
            os.close(pidfd)
            return None
        return cls(process, pidfd)

    def release(self) -> None:
        """Tell it what to become. Before that it does nothing, and ends where we end."""
        if self._pipe is not None:
            with contextlib.suppress(BrokenPipeError), self._pipe as pipe:
                pipe.write(json.dumps(self._told).encode())
            self._told = {}

    async def ended(self) -> str:
        """Wait for its end; say how it was."""
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self.pidfd, over.set)
        try:
            await over.wait()
        finally:
            loop.remove_reader(self.pidfd)
        return self._how()

    def close(self) -> None:
        """Forget it."""
        os.close(self.pidfd)

    def ask(self) -> None:
        """Ask it to end: its calls may go on for `drain_s`."""
        self._signal(signal.SIGTERM)

    def kill(self, held: tuple[Path, ...]) -> None:
        """End it at once, with all that its control group has or that descends from it."""
        below: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            below = self.process.children(recursive=True)
        self._signal(signal.SIGKILL)
        for one in below:
            # It compares when it began, so that it ends nobody who has the number now.
            with contextlib.suppress(psutil.Error):
                one.kill()
        kill_group(held)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def _how(self) -> str:
        if self._pipe is None:
            return "it ended; how, only the supervisor that started it could have known"
        try:
            told = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        except ChildProcessError:
            return "it ended"
        if told is None or told.si_code == os.CLD_EXITED:
            return f"it ended with status {0 if told is None else told.si_status}"
        return f"it was killed by {signal.Signals(told.si_status).name}"


def start(server: Server, held: ServerBounds, log: Path, listener: socket.socket) -> Life:
    """Start the process of a server, which waits until it is released; what it says goes to its log.

    It gets a copy of the socket, which stays the caller's.

    Raises:
        OSError: It cannot be started, or its log cannot be opened.
    """
    trim(log)
    told = {
        "groups": [str(folder) for folder in held.groups],
        "rlimits": list(held.rlimits.items()),
        "uid": server.uid,
        "command": server.command,
        "environment": dict(server.environment),
        "listener": listener.fileno(),
    }
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(log, flags, 0o600), "wb") as said:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "runner.up.enter"],
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            cwd="/",
            # Ctrl-C at our terminal is for us, who ask each server to end.
            start_new_session=True,
            pass_fds=(listener.fileno(),),
        )
    try:
        life = Life(psutil.Process(child.pid), os.pidfd_open(child.pid), _pipe=child.stdin, _told=told)
    except BaseException:
        child.kill()
        child.wait()
        raise
    # Whoever waits for it is told by the descriptor; Popen would only complain that nobody asked it.
    child.returncode = 0
    return life


def trim(log: Path) -> None:
    """Keep a log within bounds: what is full becomes the one before. Whoever writes goes on at its begin."""
    with contextlib.suppress(OSError):
        if log.stat().st_size > _LOG_BYTES:
            log.with_suffix(".log.1").write_bytes(log.read_bytes()[-_LOG_BYTES:])
            os.truncate(log, 0)


def last_line(log: Path) -> str:
    """Return the last line of a log, without what a terminal would obey; empty where there is none."""
    try:
        with open(log, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    line = next((line for line in reversed(lines) if line.strip()), "")
    return one_line(line)[:_LINE]
