"""Output of a program during import: its beginning goes to the log, the rest is dropped.

A tool file can print without end, and each log line takes event loop time. So lines and bytes are limited.
"""

import logging

from sandbox.host.paced_pipe import PacedPipe
from sandbox.loop_share import LoopShare

__all__ = ["MOST_BYTES", "MOST_LINES", "ImportOutput"]

log = logging.getLogger(__name__)

MOST_BYTES = 64 * 1024
"""Most bytes of it that are logged."""
MOST_LINES = 500
"""Most lines of it that are logged."""


class ImportOutput:
    """Reader of the output in the running loop, from its creation on.

    Args:
        pipe: Non-blocking pipe to read; its owner closes it after this is closed.
        share: Event loop time used by its writers.

    Attributes:
        last_line: The last line that is not blank.
    """

    def __init__(self, pipe: int, share: LoopShare) -> None:
        self.last_line = ""
        self._bytes_left, self._lines_left = MOST_BYTES, MOST_LINES
        self._pipe = PacedPipe(pipe, share, self._keep)

    def close(self) -> None:
        """Read the remaining output, which may explain a failure, and stop reading."""
        self._pipe.close(most_pieces=1)

    def _keep(self, data: bytes) -> None:
        if self._is_full():
            return
        lines = data[: self._bytes_left].decode(errors="replace").splitlines()
        for line in lines[: self._lines_left]:
            log.info("tool file printed during import", extra={"line": line})
            self.last_line = line.strip() or self.last_line
        self._bytes_left -= len(data)
        self._lines_left -= len(lines)
        if self._is_full():
            facts = {"most_lines": MOST_LINES, "most_bytes": MOST_BYTES}
            log.info("import output dropped", extra=facts)

    def _is_full(self) -> bool:
        return self._bytes_left < 0 or self._lines_left < 0
