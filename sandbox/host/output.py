"""Output of a worker, standard output and error in one: the tail is kept for its call.

It is read from a pipe whose reading end never blocks, whatever the worker does with its own end.

Source: pipe(7).
"""

import os
from dataclasses import dataclass, field

from sandbox.loop_share import LoopShare

__all__ = ["KeptOutput", "drop_output", "read_some"]

_PART_BYTES = 1 << 16
# Enough reads to empty a pipe, whatever size its writer gave it.
_MOST_READS = 256


def read_some(pipe: int, share: LoopShare) -> bytes | None:
    """Read a chunk of output: empty at the end of the pipe, None if there is no more yet."""
    try:
        return share.system_call(os.read, pipe, _PART_BYTES)
    except BlockingIOError:
        return None


def drop_output(pipe: int, share: LoopShare) -> None:
    """Discard unread output."""
    for _ in range(_MOST_READS):
        if not read_some(pipe, share):
            return


@dataclass(slots=True, kw_only=True)
class KeptOutput:
    """Tail of one call's output, since that explains a crash.

    Attributes:
        pipe: The pipe to read.
        share: Event loop time used by its writers.
        most_bytes: Most bytes kept.
        has_ended: Whether the end of the pipe was reached.
        total_bytes: Bytes received so far.
    """

    pipe: int
    share: LoopShare
    most_bytes: int
    has_ended: bool = field(init=False, default=False)
    total_bytes: int = field(init=False, default=0)
    _tail: bytearray = field(init=False, default_factory=bytearray)

    def read(self) -> bool:
        """Read a chunk of output; return whether there may be more."""
        part = read_some(self.pipe, self.share)
        if part is None:
            return False
        self.has_ended = not part
        self.keep(part)
        return bool(part)

    def keep(self, part: bytes) -> None:
        """Store a chunk read from the pipe."""
        self.total_bytes += len(part)
        self._tail += part
        del self._tail[: -self.most_bytes]

    def read_all(self) -> None:
        """Read all output so far."""
        for _ in range(_MOST_READS):
            if not self.read():
                return

    def since(self, mark: int) -> tuple[bytes, int]:
        """Return the kept output after its first `mark` bytes, and the total number of bytes."""
        new = min(self.total_bytes - mark, len(self._tail))
        return bytes(self._tail[len(self._tail) - new :]), self.total_bytes

    def text(self) -> str:
        """Return the kept output as text; invalid UTF-8 is replaced."""
        return self._tail.decode(errors="replace")
