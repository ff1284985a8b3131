"""Errors of the sandbox itself. The end of a *call* is an `Outcome`, not an exception.

SandboxError
├── ConfinementError      a layer could not be put in place; nothing ran
├── IsolationUnavailable  this machine cannot enforce the isolation asked for
├── FrameError            the peer broke the frame protocol
│   └── FrameTooLong      by a frame above its limit
├── LoadError             the program could not be loaded in the zygote
├── NoProcess             the kernel lets no further process be started
└── ZygoteDied            a zygote ended unexpectedly
    └── ForkserverDied    with the forkserver, and so did every other zygote
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
        reason: What the kernel answered.
    """

    def __init__(self, layer: str, reason: str) -> None:
        super().__init__(f"layer {layer} could not be put in place: {reason}")
        self.layer = layer
        self.reason = reason


class IsolationUnavailable(SandboxError):
    """This machine cannot enforce the isolation asked for.

    Attributes:
        missing: One sentence for each thing missing, with its cure.
    """

    def __init__(self, missing: tuple[str, ...]) -> None:
        super().__init__("; ".join(missing))
        self.missing = missing


class FrameError(SandboxError):
    """The peer sent something that is not a frame, or a frame above its limit."""


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
        line: Line of the author's file, where known.
    """

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class NoProcess(SandboxError):
    """The kernel lets no further process be started, for lack of memory or by a limit; later it may."""


class ZygoteDied(SandboxError):
    """A zygote ended although nobody asked it to."""


class ForkserverDied(ZygoteDied):
    """The forkserver ended although nobody asked it to, or had to be ended; its zygotes ended with it."""


def in_words(error: BaseException) -> str:
    """Return the kernel's error in words, without its number.

    Args:
        error: What was raised; of an `OSError` its reason, and the file if it names one.
    """
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    reason = error.strerror.replace(os.strerror(errno.ENOSYS), _NO_SUCH_CALL)
    return reason if error.filename is None else f"{reason}: {os.fsdecode(error.filename)}"
