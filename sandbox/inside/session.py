"""The end of a session: all of its processes are killed, whatever their parents are.

Source: setsid(2), getsid(2).
"""

import contextlib
import os
import signal
import time

__all__ = ["end_session"]

_END_S = 3.0


def end_session(leader: int) -> None:
    """Kill every process of a session, whose leader is dead and not yet reaped, until none is left."""
    deadline = time.monotonic() + _END_S
    while time.monotonic() < deadline:
        members = [pid for pid in _processes() if pid != leader and _session_of(pid) == leader]
        if not members:
            return
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            # Ours once its own parent is dead, and a member until it is reaped.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
