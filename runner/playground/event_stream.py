"""Server-sent events, read piece by piece: what each says, whatever the pieces are.

Source: HTML Standard, "Server-sent events", "Interpreting an event stream".
"""

from collections.abc import Iterator

__all__ = ["EventStream"]


class EventStream:
    """Takes an event stream in pieces. How much it holds is bounded by what it is given."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[str] = []

    def take(self, piece: bytes) -> Iterator[str]:
        """Yield the data of each event that is whole by now."""
        self._rest += piece
        if b"\n" not in piece:
            return
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        for line in lines:
            yield from self._line(line.removesuffix(b"\r").decode("utf-8", "replace"))

    def end(self) -> Iterator[str]:
        """Yield the data of a last event after which no blank line came, as with some servers."""
        yield from self._line(self._rest.removesuffix(b"\r").decode("utf-8", "replace"))
        yield from self._line("")

    def _line(self, line: str) -> Iterator[str]:
        name, _, value = line.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
        elif not line and self._data:
            yield "\n".join(self._data)
            self._data.clear()
