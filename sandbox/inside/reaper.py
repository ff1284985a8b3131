"""Reaping of children without threads, by a wake-up pipe that SIGCHLD writes to."""

import contextlib
import os
import signal
from collections.abc import Callable, Collection, Iterator

from sandbox.syscalls import ignore_stops_of_children

__all__ = ["AGAIN_S", "Reaper"]

AGAIN_S = 0.1


class Reaper:
    """Collects the wait status of every child of this process.

    Ignoring SIGCHLD would be simpler, but would lose the wait status that a crash report needs.
    """

    holds = False
    """Whether a zombie was not reaped at the last call: call again within `AGAIN_S`."""

    def __init__(self) -> None:
        self.wake_fd, self._write_fd = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._write_fd, False)
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        # Workers are stopped and continued frequently, which is irrelevant here.
        ignore_stops_of_children()

    def reap(
        self, may_reap: Callable[[int], bool] = lambda _pid: True, *, among: Collection[int] = ()
    ) -> Iterator[tuple[int, int]]:
        """Yield the process id and wait status of every child that has ended.

        Args:
            may_reap: Called with the process id of each before it is reaped, so that it cannot be reused yet.
                If it returns False, the child stays a zombie, and is tried again at the next call.
            among: The children to wait for while there is such a zombie.
        """
        try:
            while os.read(self.wake_fd, 4096):
                pass
        except BlockingIOError:
            pass
        held: set[int] = set()
        while (pid := _ended(held, among)) is not None:
            if may_reap(pid):
                yield os.waitpid(pid, 0)
            else:
                held.add(pid)
        self.holds = bool(held)

    def forget(self) -> None:
        """Undo the setup in a forked child, which waits for its own children."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self.wake_fd)
        os.close(self._write_fd)


def _ended(held: Collection[int], among: Collection[int]) -> int | None:
    """Return a child that has ended, if there is one that is not held."""
    # The kernel returns the first one, which may be held.
    for kind, which in ((os.P_PID, pid) for pid in among if pid not in held) if held else ((os.P_ALL, 0),):
        with contextlib.suppress(ChildProcessError):
            ended = os.waitid(kind, which, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                return int(ended.si_pid)
    return None
