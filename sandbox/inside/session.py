"""End of a session: all of its processes are killed, whatever their parents are.

Source: setsid(2), getsid(2).
"""

import contextlib
import os
import signal

__all__ = ["end_session"]


def end_session(leader: int) -> bool:
    """Kill every process of a session, whose leader is dead and not yet reaped; return whether none is left.

    A killed process may take seconds to end, as during a write to a slow disk: repeat it after False.
    """
    while members := [pid for pid in _processes() if pid != leader and _session_of(pid) == leader]:
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reaped = [pid for pid in members if _is_reaped(pid)]
        if len(reaped) < len(members):
            return False
    return True


def _is_reaped(pid: int) -> bool:
    """Reap a dead member, which becomes our child once its own parent is dead."""
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    return False


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
