"""What a worker puts back after each call: whatever a call finds in place, the next one finds too.

It is a courtesy to honest tools, not a wall: code that ran in this process can undo it. The wall stands
between users, who never share a process.

Source: getcwd(2), umask(2), environ(7).
"""

import contextlib
import os
import sys
import tempfile
from dataclasses import dataclass

__all__ = ["Standing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The working folder, environment and arguments of a worker that has served no call yet.

    Attributes:
        folder: The working folder. By its path: a descriptor would be one that tools can see and close.
        environment: The environment, as the system has it.
        arguments: What `sys.argv` says.
        umask: What is left out of the mode of new files.
    """

    folder: str
    environment: dict[bytes, bytes]
    arguments: tuple[str, ...]
    umask: int

    @classmethod
    def now(cls) -> "Standing":
        """Return what is in place now."""
        # It can only be learned by setting it.
        umask = os.umask(0o077)
        os.umask(umask)
        return cls(
            folder=os.getcwd(), environment=dict(_environment()), arguments=tuple(sys.argv), umask=umask
        )

    def restore(self) -> bool:
        """Put it back; say whether all of it is in place, so that the process may serve another call."""
        # Whatever a call has made of these modules, its answer counts all the same.
        with contextlib.suppress(Exception):
            os.chdir(self.folder)
            os.umask(self.umask)
            if _environment() != self.environment:
                os.environb.clear()
                os.environb.update(self.environment)
            if tuple(sys.argv) != self.arguments:
                sys.argv[:] = self.arguments
            tempfile.tempdir = None
            return True
        return False

    @staticmethod
    def flush() -> None:
        """Pass on what the call has printed: the host reads it before the next call prints more."""
        for stream in (sys.stdout, sys.stderr):
            # A tool may have closed it, or put anything else there, and its answer counts all the same.
            with contextlib.suppress(Exception):
                stream.flush()


def _environment() -> dict[bytes, bytes]:
    """Return what lies behind `os.environ`, which decodes each name and value whenever it is compared."""
    held: dict[bytes, bytes] = vars(os.environ)["_data"]
    return held
