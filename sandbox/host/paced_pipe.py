"""Reader of a pipe with an untrusted writer: one chunk at a time, with a pause after each.

So an endless writer takes at most a hundred turns of the loop a second, and blocks at its own end. It still
gets 6.4 MB a second, enough for honest output.

Source: pipe(7).
"""

import asyncio
import time
from collections.abc import Callable

from sandbox.host.output import read_some
from sandbox.loop_share import LoopShare

__all__ = ["PacedPipe"]

_PAUSE_S = 0.01


class PacedPipe:
    """Reads a pipe in the running loop, from now on.

    Args:
        pipe: Non-blocking pipe to read; its owner closes it after this is closed.
        share: Event loop time used by its writers.
        take: Called with each chunk.
        end: Called at the end of the pipe, if given.
    """

    def __init__(
        self,
        pipe: int,
        share: LoopShare,
        take: Callable[[bytes], None],
        *,
        end: Callable[[], None] | None = None,
    ) -> None:
        self._pipe, self._share, self._take, self._end = pipe, share, take, end
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._listen()

    def close(self, *, most_pieces: int) -> None:
        """Read the available output, at most `most_pieces` chunks, and stop reading."""
        self._stop()
        for _ in range(most_pieces):
            if not (data := read_some(self._pipe, self._share)):
                return
            self._take(data)

    def _stop(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._pipe)

    def _listen(self) -> None:
        self._loop.add_reader(self._pipe, self._readable)

    def _readable(self) -> None:
        data = read_some(self._pipe, self._share)
        if data is None:
            return
        self._loop.remove_reader(self._pipe)
        if data:
            rest_s = self._share.rest_s(now=time.monotonic())
            self._pause = self._loop.call_later(max(_PAUSE_S, rest_s), self._listen)
            self._take(data)
        elif self._end is not None:
            self._end()
