"""What is noted of a call once it has ended: facts about it, and none of what it was given or returned."""

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["CallRecord", "FileFacts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """A file that a call took or made.

    Attributes:
        sha256: Hex digest of its bytes, where it is known.
        size: Its length in bytes.
    """

    sha256: str | None
    size: int


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
    tier: str | None = None
    worker: str | None = None
    denials: Sequence[tuple[str, str]] = ()
