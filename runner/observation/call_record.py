"""The record of a call that has ended, for all observers; it holds no value, content or token."""

import logging
import os
import socket
from collections.abc import Sequence
from typing import NotRequired, TypedDict

from runner.system.logging_setup import CallScope
from sandbox.call_value import call_value

__all__ = ["MOST_NAME_CHARS", "OTHER", "CallRecord", "FileFacts", "operation", "utf8"]

log = logging.getLogger(__name__)

OTHER = "other"
"""Stand-in for a name outside a bounded set."""

MOST_NAME_CHARS = 128
"""Longest recorded name of an unknown tool, which is any text that its client sent."""

_OPERATIONS = frozenset(
    {
        *("connect", "file operation", "lookup", "open", "run", "sqlite3.connect"),
        *(f"os.{name}" for name in dir(os)),
        *(f"socket.{name}" for name in {*dir(socket), *dir(socket.socket)}),
    }
)


def operation(name: str) -> str:
    """Return the name of an operation that was denied, or `other`.

    Code in a worker could send any name, a new one each time.
    """
    return name if name in _OPERATIONS else OTHER


def utf8(name: str) -> str:
    """Return a name with lone surrogates escaped: with one, all metrics or spans would be lost."""
    return name.encode(errors="backslashreplace").decode()


class FileFacts(TypedDict):
    """A file that a call took or made; with its id in the store if no result has that."""

    id: NotRequired[str]
    sha256: str | None
    bytes: int


@call_value
class CallRecord:
    """One call that has ended.

    Attributes:
        is_known: Whether the tool exists: only then is its name from a bounded set.
        outcome: `ok`, `error` for a result that the tool marked as one, or the code of the envelope.
        steps: The end of each step, in seconds since the call began; in order.
        outputs: The files that it returned or deferred.
        returned: Number of the files that it returned.
        generated: Files that the tool wrote and did not return, and that were stored.
        tier: The isolation tier; None where no worker of ours ran it.
        worker: `fresh` or `kept`; None as with `tier`.
        denials: The operation and the layer of each denial.
        approval: The answer to a rule that held it, or its request, with the name of the rule.
    """

    id: str
    user: str
    tool: str
    is_known: bool
    method: str = "tools/call"
    outcome: str
    elapsed_s: float
    steps: Sequence[tuple[str, float]] = ()
    inputs: Sequence[FileFacts] = ()
    outputs: Sequence[FileFacts] = ()
    returned: int = 0
    generated: Sequence[FileFacts] = ()
    tier: str | None = None
    worker: str | None = None
    denials: Sequence[tuple[str, str]] = ()
    approval: str | None = None

    @property
    def elapsed_ms(self) -> float:
        """Return its duration in milliseconds, as in the log and the audit log."""
        return round(self.elapsed_s * 1000, 1)

    def log_end(self) -> None:
        """Log the call."""
        facts: dict[str, object] = {
            "user": self.user,
            "tool": self.tool,
            "elapsed_ms": self.elapsed_ms,
            "outcome": self.outcome,
            "files": self.returned,
        }
        facts |= {"generated": len(self.generated)} if self.generated else {}
        facts |= {"approval": self.approval} if self.approval else {}
        with CallScope(self.id):
            log.info("call ended", extra=facts)
