"""A line that is longer than any that is read: left out, but for what says whom it concerns.

Whoever waits for it is told so by its id, and the connection goes on: to end it would end what a server holds
in memory.
"""

from runner.protocol.messages import HEAD_BYTES, TAIL_BYTES, Unreadable, too_long

__all__ = ["LongLine"]


class LongLine:
    """One of them, as it comes in.

    Args:
        begun: What has come of it.

    Attributes:
        size: How long it is so far, in bytes.
    """

    def __init__(self, begun: bytes | bytearray) -> None:
        self.size = len(begun)
        self._head, self._tail = bytes(begun[:HEAD_BYTES]), bytes(begun[-TAIL_BYTES:])

    def add(self, data: bytes) -> None:
        """Take in what comes next of it."""
        self.size += len(data)
        self._tail = (self._tail + data[-TAIL_BYTES:])[-TAIL_BYTES:]

    def problem(self, most_bytes: int) -> Unreadable:
        """Return what to tell of it, where lines of so many bytes are read."""
        return too_long(self._head, self._tail, most_bytes)
