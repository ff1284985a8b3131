"""A reader of a pipe with an untrusted writer: one chunk at a time, with a pause after each.

So an endless writer takes at most a hundred turns of the loop a second, and blocks at its own end. It still
gets 6.4 MB a second, enough for honest output.

Source: pipe(7).
"""

import asyncio
from collections.abc import Callable

from sandbox.host.output import read_some

__all__ = ["PacedPipe"]

_PAUSE_S = 0.01


class PacedPipe:
    """Reads a pipe in the running loop, from now on.

    Args:
        pipe: Where it comes from; set not to block, and closed by its owner once this is closed.
        take: Takes a piece.
        end: Called once the pipe has ended, if anybody wants to know.
    """

    def __init__(
        self, pipe: int, take: Callable[[bytes], None], *, end: Callable[[], None] | None = None
    ) -> None:
        self._pipe, self._take, self._end = pipe, take, end
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._listen()

    def close(self, *, most_pieces: int) -> None:
        """Read the available output, `most_pieces` at most, and stop reading."""
        self._stop()
        for _ in range(most_pieces):
            if not (data := read_some(self._pipe)):
                return
            self._take(data)

    def _stop(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._pipe)

    def _listen(self) -> None:
        self._loop.add_reader(self._pipe, self._readable)

    def _readable(self) -> None:
        data = read_some(self._pipe)
        if data is None:
            return
        self._loop.remove_reader(self._pipe)
        if data:
            self._pause = self._loop.call_later(_PAUSE_S, self._listen)
            self._take(data)
        elif self._end is not None:
            self._end()
