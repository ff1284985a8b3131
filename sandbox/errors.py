"""Errors of the sandbox itself. The end of a *call* is an `Outcome`, not an exception.

SandboxError
├── ConfinementError      a layer could not be put in place; nothing ran
├── IsolationUnavailable  this machine cannot enforce the requested isolation
├── FrameError            the peer broke the frame protocol
│   └── FrameTooLong      the peer sent a frame above its limit
├── LoadError             the program could not be loaded in the zygote
├── NoProcess             the kernel refuses to start another process
└── ZygoteDied            a zygote ended unexpectedly
    └── ForkserverDied    the forkserver ended unexpectedly, and every zygote with it
"""

import errno
import os

__all__ = [
    "ConfinementError",
    "ForkserverDied",
    "FrameError",
    "FrameTooLong",
    "IsolationUnavailable",
    "LoadError",
    "NoProcess",
    "SandboxError",
    "ZygoteDied",
    "in_words",
]

_NO_SUCH_CALL = "this kernel has no such system call, or the profile of a container hides it"


class SandboxError(Exception):
    """Base of all errors of this package."""


class ConfinementError(SandboxError):
    """A layer could not be put in place, so nothing was run.

    Attributes:
        layer: Name of the layer, as `doctor` prints it.
        reason: The kernel's error.
    """

    def __init__(self, layer: str, reason: str) -> None:
        super().__init__(f"layer {layer} could not be put in place: {reason}")
        self.layer = layer
        self.reason = reason


class IsolationUnavailable(SandboxError):
    """This machine cannot enforce the requested isolation.

    Attributes:
        missing: One sentence for each missing feature, with its remedy.
    """

    def __init__(self, missing: tuple[str, ...]) -> None:
        super().__init__("; ".join(missing))
        self.missing = missing


class FrameError(SandboxError):
    """The peer sent a malformed frame, or one above its limit."""


class FrameTooLong(FrameError):
    """The peer announced a frame above its limit.

    Attributes:
        length: Its length in bytes.
        limit_bytes: The limit.
    """

    def __init__(self, length: int, limit_bytes: int) -> None:
        super().__init__(f"a frame of {length} bytes is above the limit of {limit_bytes}")
        self.length = length
        self.limit_bytes = limit_bytes


class LoadError(SandboxError):
    """The program could not be loaded: the author's file is at fault.

    Attributes:
        line: Line of the author's file, if known.
        is_exit: Whether the file ended the interpreter, so that its output may have the reason.
    """

    def __init__(self, message: str, line: int | None = None, *, is_exit: bool = False) -> None:
        super().__init__(message)
        self.line, self.is_exit = line, is_exit


class NoProcess(SandboxError):
    """The kernel refuses to start another process, for lack of memory or due to a limit; this may pass."""


class ZygoteDied(SandboxError):
    """A zygote ended unexpectedly."""


class ForkserverDied(ZygoteDied):
    """The forkserver ended unexpectedly, or had to be killed; its zygotes ended with it."""


def in_words(error: BaseException) -> str:
    """Return the kernel's error in words, without its number.

    Args:
        error: The error; for an `OSError` its reason is returned, with the file if it names one.
    """
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    reason = error.strerror.replace(os.strerror(errno.ENOSYS), _NO_SUCH_CALL)
    return reason if error.filename is None else f"{reason}: {os.fsdecode(error.filename)}"
