"""The longest time for which an event loop stands still, measured by a beat within it.

Every 5 ms the loop calls a function that looks at two clocks. A pause is what lies between two of its calls:
the time on the wall, or the processor time of the whole process, whichever is less. While a callback
computes, both grow, and so they do while another thread is in a C call that holds the interpreter's lock. A
thread that lets the loop run does not count, since the beat goes on. Nor does a busy machine: a process that
waits for a processor uses none. An idle loop pauses for the 5 ms and uses nothing.

The result is in a file that is mapped by both processes.
"""

import asyncio
import contextlib
import mmap
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["Beats", "StallProbe", "beat_into"]

_EVERY_S = 0.005
# Beats in all, and the longest pause in seconds.
_FORM = struct.Struct("=qd")
_PATIENCE_S = 200.0


class Beats:
    """The beat of the process that is measured.

    Args:
        file: Where its result goes.
    """

    def __init__(self, file: Path) -> None:
        self._result = _mapped(file)
        self._main = threading.get_ident()
        self._last = (time.monotonic(), time.process_time())

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin, if it is the main thread's loop."""
        if threading.get_ident() == self._main:
            self._last = (time.monotonic(), time.process_time())
            loop.call_soon(self._beat, loop)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        wall, used = self._last
        self._last = (time.monotonic(), time.process_time())
        pause = min(self._last[0] - wall, self._last[1] - used)
        count, longest = _FORM.unpack_from(self._result)
        _FORM.pack_into(self._result, 0, count + 1, max(longest, pause))
        loop.call_later(_EVERY_S, self._beat, loop)


def beat_into(file: Path) -> Beats:
    """Let the event loop of this process beat, once it runs."""
    beats = Beats(file)
    run_forever = asyncio.BaseEventLoop.run_forever

    def run(loop: asyncio.BaseEventLoop) -> None:
        beats.start(loop)
        run_forever(loop)

    asyncio.BaseEventLoop.run_forever = run  # type: ignore[method-assign, assignment]
    return beats


class StallProbe:
    """The pauses of another process.

    Args:
        file: Where its beat writes them.
    """

    def __init__(self, file: Path) -> None:
        self._result = _mapped(file)

    @contextlib.contextmanager
    def watching(self) -> Iterator[Callable[[], float]]:
        """Watch while a block runs; what is yielded returns the longest pause, once the block has ended."""
        self._wait(3)
        found: list[float] = []
        count, _ = _FORM.unpack_from(self._result)
        _FORM.pack_into(self._result, 0, count, 0.0)
        yield lambda: found[0]
        # What goes on after an answer counts, too.
        self._wait(10)
        found.append(_FORM.unpack_from(self._result)[1])

    def _wait(self, beats: int) -> None:
        wanted = _FORM.unpack_from(self._result)[0] + beats
        until = time.monotonic() + _PATIENCE_S
        while _FORM.unpack_from(self._result)[0] < wanted:
            assert time.monotonic() < until, "the event loop stands still"
            time.sleep(_EVERY_S)


def _mapped(file: Path) -> mmap.mmap:
    with file.open("a+b") as opened:
        opened.truncate(_FORM.size)
        return mmap.mmap(opened.fileno(), _FORM.size)
