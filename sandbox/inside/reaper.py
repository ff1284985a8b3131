"""Reap children without threads: a wake-up pipe that SIGCHLD writes to."""

import os
import signal
from collections.abc import Callable, Iterator

from sandbox.syscalls import ignore_stops_of_children

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
        # Workers are stopped and continued all the time, which does not matter here.
        ignore_stops_of_children()

    def reap(self, before: Callable[[int], None] = lambda _pid: None) -> Iterator[tuple[int, int]]:
        """Yield the process id and wait status of every child that has ended.

        Args:
            before: Called with the process id of each while it cannot be given away yet.
        """
        try:
            while os.read(self.wake_fd, 4096):
                pass
        except BlockingIOError:
            pass
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            before(ended.si_pid)
            yield os.waitpid(ended.si_pid, 0)

    def forget(self) -> None:
        """Undo everything in a forked child, which has children of its own to wait for."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self.wake_fd)
        os.close(self._write_fd)
