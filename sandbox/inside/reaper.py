"""Reap children without threads: a wake-up pipe that SIGCHLD writes to."""

import os
import signal
from collections.abc import Iterator

__all__ = ["Reaper"]


class Reaper:
    """Collects the wait status of every child of this process.

    Ignoring SIGCHLD would be simpler and would lose exactly what a crash report needs.
    """

    def __init__(self) -> None:
        self.wake_fd, self._write_fd = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._write_fd, False)
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

    def reap(self) -> Iterator[tuple[int, int]]:
        """Yield the process id and wait status of every child that has ended."""
        try:
            while os.read(self.wake_fd, 4096):
                pass
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            yield pid, status

    def forget(self) -> None:
        """Undo everything in a forked child, which has children of its own to wait for."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self.wake_fd)
        os.close(self._write_fd)
