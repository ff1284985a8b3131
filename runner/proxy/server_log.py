"""Lines of a server's standard error in our log, and their form. Decides only.

A server writes what it likes, as much as it likes and in whatever form. So each of its lines begins with a
word and its name, as no line of ours does, holds nothing that a terminal obeys, and ends at a length; and of
all lines of one server only so much is passed on as somebody may want to read. Time is an argument.
"""

import re
from dataclasses import dataclass, field

from runner.formats.terminal_text import one_line
from sandbox.token_bucket import TokenBucket

__all__ = ["ServerLog", "log_budget", "plain_line"]

_LINE_BYTES = 4096
# Of a line, in bytes of the budget: so 2,600 lines may come at once.
_LEAST_COST = 100
_ENDS = re.compile(rb"[\r\n]+")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def log_budget() -> TokenBucket:
    """Return the budget in bytes for what one server says, of all of its processes together.

    Tracebacks of a bad start fit in what may come at once. Afterwards it is what journald, by default, takes
    of a service: 10,000 messages in 30 seconds, of two hundred bytes each.
    """
    return TokenBucket(at_once=256 * 1024, per_s=64 * 1024)


@dataclass(slots=True, kw_only=True, eq=False)
class ServerLog:
    """Output of one process.

    Attributes:
        server: Name of the server.
        budget: How much of it is passed on.
        dropped: How many of its bytes were not; the reporter of them resets it to 0.
    """

    server: str
    budget: TokenBucket = field(default_factory=log_budget)
    dropped: int = 0
    _lead: str = field(init=False)
    _partial: bytes = b""
    _partial_bytes: int = 0
    _is_lost: bool = False

    def __post_init__(self) -> None:
        self._lead = f"stderr of {plain_line(self.server)}: "

    def passed(self, data: bytes, *, now: float) -> str:
        """Return the lines to write for a piece of what it says; what does not fit in the budget is counted.

        It takes no longer than the budget has lines, whatever the piece holds: behind the first line that
        does not fit nothing of it is looked at.
        """
        lines: list[str] = []
        start = 0
        for ends in _ENDS.finditer(data):
            self._begin(data[start : ends.start()])
            start = ends.end()
            if not self._end(lines, now):
                self.dropped += len(data) - start
                self._is_lost = data[-1:] not in (b"\n", b"\r")
                return "".join(lines)
        self._begin(data[start:])
        return "".join(lines)

    def rest(self, *, now: float) -> str:
        """Return what to write of a line that it has not ended, now that it says no more."""
        lines: list[str] = []
        self._end(lines, now)
        return "".join(lines)

    def _begin(self, part: bytes) -> None:
        if self._is_lost:
            self.dropped += len(part)
            return
        self._partial += part[: _LINE_BYTES - len(self._partial)]
        self._partial_bytes += len(part)

    def _end(self, lines: list[str], now: float) -> bool:
        """Add the line that has begun to what is written; return whether it fitted in the budget."""
        start, size, was_lost = self._partial, self._partial_bytes, self._is_lost
        self._partial, self._partial_bytes, self._is_lost = b"", 0, False
        if was_lost or not size:
            return True
        text = plain_line(start.decode("utf-8", "replace"))
        cut = f"… ({size} bytes)" if size > len(start) else ""
        line = f"{self._lead}{text}{cut}\n"
        # A short line costs more than its length, and one of which nothing is seen too: each takes its time.
        if not self.budget.takes(max(_LEAST_COST, len(start), len(line.encode())), now=now):
            self.dropped += size
            return False
        if text.strip():
            lines.append(line)
        return True


def plain_line(text: str) -> str:
    """Return a text on one line, without colours, and with escapes for what else cannot be seen."""
    return one_line(_COLOURS.sub("", text))
