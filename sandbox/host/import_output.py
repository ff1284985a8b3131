"""What a program prints while a zygote imports it: its beginning goes to the log, the rest is dropped.

A tool file can print without end, and each line of the log takes a moment of everybody's time. So lines are
counted as well as bytes, and between two pieces others have the event loop.

Source: pipe(7).
"""

import asyncio
import logging

from sandbox.host.output import read_some

__all__ = ["MOST_BYTES", "MOST_LINES", "ImportOutput"]

log = logging.getLogger(__name__)

MOST_BYTES = 64 * 1024
"""How much of it the log gets."""
MOST_LINES = 500
"""How many lines of it the log gets."""
_PAUSE_S = 0.01


class ImportOutput:
    """Reads it in the running loop, from now on.

    Args:
        pipe: Where it comes from; set not to block, and closed by whoever owns it once this is closed.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._bytes_left, self._lines_left = MOST_BYTES, MOST_LINES
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._listen()

    def close(self) -> None:
        """Read what is there, which may say why there is no more, and then nothing."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._pipe)
        if data := read_some(self._pipe):
            self._keep(data)

    def _listen(self) -> None:
        self._loop.add_reader(self._pipe, self._readable)

    def _readable(self) -> None:
        data = read_some(self._pipe)
        if data is None:
            return
        self._loop.remove_reader(self._pipe)
        if data:
            self._keep(data)
            self._pause = self._loop.call_later(_PAUSE_S, self._listen)

    def _keep(self, data: bytes) -> None:
        if self._is_full():
            return
        lines = data[: self._bytes_left].decode(errors="replace").splitlines()
        for line in lines[: self._lines_left]:
            log.info("tool file printed while it was imported", extra={"line": line})
        self._bytes_left -= len(data)
        self._lines_left -= len(lines)
        if self._is_full():
            facts = {"most_lines": MOST_LINES, "most_bytes": MOST_BYTES}
            log.info("more that a tool file printed while it was imported is dropped", extra=facts)

    def _is_full(self) -> bool:
        return self._bytes_left < 0 or self._lines_left < 0
