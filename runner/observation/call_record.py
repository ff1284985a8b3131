"""Record of an ended call: facts about it, and none of its arguments or results."""

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["MOST_NAME_CHARS", "OTHER", "CallRecord", "FileFacts", "operation"]

OTHER = "other"
"""What stands for a word that is not one of ours."""

MOST_NAME_CHARS = 128
"""So much is noted of the name of a tool that does not exist, which is whatever its client said."""

_OF_OS = (
    "chown chroot lchown link listdir makedirs mkdir mkfifo mknod open remove removexattr rename replace "
    "rmdir scandir setxattr symlink truncate unlink"
)
_OF_SOCKETS = "bind connect getaddrinfo gethostbyname sendmsg sendto socket"
_OPERATIONS = frozenset(
    {
        *(f"os.{name}" for name in _OF_OS.split()),
        *("connect", "file operation", "lookup", "open", "run", "sqlite3.connect"),
        *(f"socket.{name}" for name in _OF_SOCKETS.split()),
    }
)


def operation(named: str) -> str:
    """Return the name of an operation that was denied, or `other`.

    A worker says what it was denied, and code in it could say anything there: words of its own, a new one
    each time. So only those count that the guard and the gate have.
    """
    return named if named in _OPERATIONS else OTHER


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """A file that a call took or made.

    Attributes:
        sha256: Hex digest of its bytes, where it is known.
        size: Its length in bytes.
        id: Its id in the store, where a record is to say it: no result does.
    """

    sha256: str | None
    size: int
    id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One call that has ended.

    Attributes:
        id: The call's, on every log record of it.
        user: Who called.
        tool: The tool, as its client named it.
        is_known: Whether there is such a tool: only then is the name one of a bounded number.
        method: The MCP method.
        outcome: `ok`, `error` for what the tool called one, or the code of the envelope.
        began: When it began, in seconds since the epoch.
        elapsed_s: How long it took, in seconds.
        steps: Each step, and when it was done, in seconds since `began`; in order.
        arguments: What the client sent for the tool; for a digest only.
        inputs: The files that it was given.
        outputs: The files that it returned.
        generated: What was kept of files that the tool wrote and did not return.
        tier: The isolation tier, where a worker of ours ran it.
        worker: `fresh` or `kept`; None where none of ours ran it.
        denials: What it was denied: the operation and the layer.
    """

    id: str
    user: str
    tool: str
    is_known: bool
    method: str = "tools/call"
    outcome: str
    began: float
    elapsed_s: float
    steps: Sequence[tuple[str, float]] = ()
    arguments: object = field(default=None, repr=False)
    inputs: Sequence[FileFacts] = ()
    outputs: Sequence[FileFacts] = ()
    generated: Sequence[FileFacts] = ()
    tier: str | None = None
    worker: str | None = None
    denials: Sequence[tuple[str, str]] = ()
