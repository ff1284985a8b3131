"""Output of a program during import: its beginning goes to the log, the rest is dropped.

A tool file can print without end, and each log line costs time of the event loop. So both lines and bytes are
limited.
"""

import logging

from sandbox.host.paced_pipe import PacedPipe

__all__ = ["MOST_BYTES", "MOST_LINES", "ImportOutput"]

log = logging.getLogger(__name__)

MOST_BYTES = 64 * 1024
"""Most bytes of it in the log."""
MOST_LINES = 500
"""Most lines of it in the log."""


class ImportOutput:
    """Reads it in the running loop, from now on.

    Args:
        pipe: Where it comes from; set not to block, and closed by its owner once this is closed.
    """

    def __init__(self, pipe: int) -> None:
        self._bytes_left, self._lines_left = MOST_BYTES, MOST_LINES
        self._pipe = PacedPipe(pipe, self._keep)

    def close(self) -> None:
        """Read the remaining output, which may hold the cause of the end, and stop reading."""
        self._pipe.close(most_pieces=1)

    def _keep(self, data: bytes) -> None:
        if self._is_full():
            return
        lines = data[: self._bytes_left].decode(errors="replace").splitlines()
        for line in lines[: self._lines_left]:
            log.info("tool file printed during import", extra={"line": line})
        self._bytes_left -= len(data)
        self._lines_left -= len(lines)
        if self._is_full():
            facts = {"most_lines": MOST_LINES, "most_bytes": MOST_BYTES}
            log.info("import output dropped", extra=facts)

    def _is_full(self) -> bool:
        return self._bytes_left < 0 or self._lines_left < 0
