"""Process state that a worker restores after each call.

It is a courtesy to honest tools, not a security boundary: code that ran in this process can undo it. The
boundary is between users, who never share a process.

Source: getcwd(2), umask(2), environ(7), tzset(3), setitimer(2), getrlimit(2).
"""

import contextlib
import os
import resource
import signal
import sys
import tempfile
import time
from dataclasses import dataclass

__all__ = ["KernelLimits", "ProcessState"]

_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
# All limits of a process, except processor time and data: these are set before each call.
_LIMITS = (
    resource.RLIMIT_AS,
    resource.RLIMIT_CORE,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_MEMLOCK,
    resource.RLIMIT_MSGQUEUE,
    resource.RLIMIT_NICE,
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_NPROC,
    resource.RLIMIT_RSS,
    resource.RLIMIT_RTPRIO,
    resource.RLIMIT_SIGPENDING,
    resource.RLIMIT_STACK,
)
_RENEWED = (resource.RLIMIT_CPU, resource.RLIMIT_DATA)


class KernelLimits:
    """Kernel limits at the start of calls, restored after a call has narrowed them."""

    __slots__ = ("_hard", "_pairs")

    def __init__(self) -> None:
        self._pairs = [resource.getrlimit(which) for which in _LIMITS]
        self.begin()

    def begin(self) -> None:
        """Record the limits that are renewed for each call; the others are as restored."""
        self._hard = [resource.getrlimit(which)[1] for which in _RENEWED]

    def restore(self) -> bool:
        """Restore the limits; return whether all are as before. A hard limit cannot be raised again."""
        # A tool may have replaced the functions; its answer is still valid.
        with contextlib.suppress(Exception):
            for which, pair in zip(_LIMITS, self._pairs, strict=True):
                if resource.getrlimit(which) != pair:
                    resource.setrlimit(which, pair)
            now = [resource.getrlimit(which)[1] for which in _RENEWED]
            # The host may have raised them for a concurrent call.
            return all(map(_reaches, now, self._hard))
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """State of a worker before its first call.

    Attributes:
        folder: Path of the working folder; tools could see and close a descriptor.
        environment: The environment, as bytes.
        arguments: The content of `sys.argv`.
        umask: The file mode creation mask.
    """

    folder: str
    environment: dict[bytes, bytes]
    arguments: tuple[str, ...]
    umask: int

    @classmethod
    def now(cls) -> "ProcessState":
        """Return the current state."""
        # The umask can only be read by setting it.
        umask = os.umask(0o077)
        os.umask(umask)
        return cls(
            folder=os.getcwd(), environment=dict(_environment()), arguments=tuple(sys.argv), umask=umask
        )

    def restore(self, *, goes_on: bool) -> bool:
        """Restore it; return whether that succeeded, so that the process may serve another call.

        Args:
            goes_on: Whether background work of the call continues after it, including its timers.
        """
        # A call may have changed these modules; its answer is still valid.
        with contextlib.suppress(Exception):
            os.chdir(self.folder)
            os.umask(self.umask)
            if _environment() != self.environment:
                os.environb.clear()
                os.environb.update(self.environment)
                # The C library caches the time zone.
                time.tzset()
            if tuple(sys.argv) != self.arguments:
                sys.argv[:] = self.arguments
            tempfile.tempdir = None
            if not goes_on:
                # Timers of a stopped process keep running: the signal would hit the next call.
                for timer in _TIMERS:
                    signal.setitimer(timer, 0)
            return True
        return False

    @staticmethod
    def flush() -> None:
        """Flush the call's output: the host reads it before the next call prints more."""
        for stream in (sys.stdout, sys.stderr):
            # A tool may have closed or replaced the stream; its answer is still valid.
            with contextlib.suppress(Exception):
                stream.flush()


def _reaches(now: int, before: int) -> bool:
    return now == before or now == resource.RLIM_INFINITY or -1 < before < now


def _environment() -> dict[bytes, bytes]:
    """Return the dictionary behind `os.environ`, which decodes each name and value on comparison."""
    held: dict[bytes, bytes] = vars(os.environ)["_data"]
    return held
