"""Orphans of a killed forkserver: found by their sessions, killed, and awaited.

Zygotes and workers die with their parents, but processes started by a call and freshly forked processes do
not. All of them keep the session id of their zygote or of the forkserver for life.

Source: setsid(2), pidfd_send_signal(2).
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sandbox.host.process_stat import ProcessStat

__all__ = ["end_orphans", "started_at"]

_END_S = 5.0
_PAUSE_S = 0.005
_DEAD = (b"Z", b"X")


class _Process(NamedTuple):
    pid: int
    state: bytes
    session: int
    started: int


def started_at(pid: int) -> int | None:
    """Return the start time of a process, in clock ticks after boot; None if it has ended."""
    process = _process(pid)
    return None if process is None else process.started


def end_orphans(sessions: Mapping[int, int | None]) -> bool:
    """Kill every process of the given sessions; return whether none was left within five seconds.

    Args:
        sessions: Leader of each session, and its start time, if known. A session whose number now
            belongs to another process has no members left.
    """
    deadline = time.monotonic() + _END_S
    while time.monotonic() < deadline:
        left = list(_members(sessions))
        if not left:
            return True
        for member in left:
            _kill(member)
        time.sleep(_PAUSE_S)
    return False


def _members(sessions: Mapping[int, int | None]) -> Iterator[_Process]:
    """Yield the living processes of these sessions, and reap our dead children."""
    everybody = [found for name in os.listdir("/proc") if name.isdecimal() and (found := _process(int(name)))]
    leaders = {process.pid: process.started for process in everybody}
    # The kernel reuses a number once no session has it any more.
    past = {pid for pid, began in sessions.items() if began is not None and leaders.get(pid, began) != began}
    for process in everybody:
        if process.session in sessions and process.session not in past:
            if process.state not in _DEAD:
                yield process
            else:
                # It has become our child if this process is the init of a container.
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)


def _kill(process: _Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process.pid)
        try:
            # Checked again: the pid may have been reused before the descriptor was opened.
            if started_at(process.pid) == process.started:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _process(pid: int) -> _Process | None:
    try:
        stat = ProcessStat.of(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return _Process(pid=pid, state=stat.state, session=stat.session, started=stat.started)
