"""How long a server's event loop is held, as processor time that its process uses between two answers.

A request that is answered at once is sent again and again. What the server's own process has used of the
processors while one of them waited, in all its threads, is an upper bound of the time for which the loop was
held. Unlike time on the wall it does not grow with what other processes do. The threads count because a C
call in any of them may hold the interpreter's lock, and so the loop.

Source: proc(5), `/proc/PID/task/TID/schedstat`.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["StallProbe", "used_s"]


def used_s(pid: int) -> float:
    """Return the processor time, in seconds, that the threads of a process have used."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


class StallProbe:
    """Sends requests, one after the other, until it is closed.

    Args:
        pid: The process of the server.
        ask: Sends one request and returns when it is answered.
    """

    def __init__(self, pid: int, ask: Callable[[], None]) -> None:
        self._pid, self._ask = pid, ask
        self._longest = 0.0
        self._answers = 0
        self._changed = threading.Condition()
        self._ends = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """Send nothing more."""
        self._ends = True
        self._thread.join()

    @contextlib.contextmanager
    def watching(self) -> Iterator[Callable[[], float]]:
        """Watch while a block runs; what is yielded returns the longest stall, once the block has ended."""
        self._after(2)
        with self._changed:
            self._longest = 0.0
        found: list[float] = []
        yield lambda: found[0]
        # One may have waited all the time, and one more is due for what goes on after an answer.
        self._after(2)
        found.append(self._longest)

    def _after(self, answers: int) -> None:
        with self._changed:
            wanted = self._answers + answers
            assert self._changed.wait_for(lambda: self._answers >= wanted or self._ends, timeout=120)

    def _run(self) -> None:
        try:
            while not self._ends:
                before = used_s(self._pid)
                self._ask()
                spent = used_s(self._pid) - before
                with self._changed:
                    self._longest = max(self._longest, spent)
                    self._answers += 1
                    self._changed.notify_all()
        finally:
            self._ends = True
