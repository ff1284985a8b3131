"""The line of the log that each call has."""

import logging
from dataclasses import dataclass

from runner.system.logging_setup import CallScope

__all__ = ["CallLine"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLine:
    """Fields of the line.

    Attributes:
        call: The call's id.
        user: The name of the user who called.
        tool: The name of the tool.
        outcome: The error's code, `error` where the tool said so, or `ok`.
        ended: When it ended, in seconds since the epoch.
        elapsed_ms: How long it took, in milliseconds.
        files: How many files it returned.
        generated: How many others were kept that the tool wrote.
    """

    call: str
    user: str
    tool: str
    outcome: str
    ended: float
    elapsed_ms: float
    files: int = 0
    generated: int = 0

    def write(self) -> None:
        """Write the line, with the time at which the call ended: it may be written a little later."""
        if not log.isEnabledFor(logging.INFO):
            return
        facts: dict[str, object] = {
            "user": self.user,
            "tool": self.tool,
            "elapsed_ms": self.elapsed_ms,
            "outcome": self.outcome,
            "files": self.files,
        }
        facts |= {"generated": self.generated} if self.generated else {}
        record = log.makeRecord(log.name, logging.INFO, __file__, 0, "call ended", (), None, extra=facts)
        record.created = self.ended
        record.msecs = self.ended % 1 * 1000
        with CallScope(self.call):
            log.handle(record)
