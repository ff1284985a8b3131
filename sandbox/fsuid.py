"""One thread looks at a process as the user who owns it, for a moment.

Root may look at every process only with the capability SYS_PTRACE, which containers do not give by default.
With the same user and group id a process needs none, and a thread of root can have them for a moment,
with the capabilities SETUID and SETGID. Not for anything that changes something. The kernel then no longer
lets others without that capability look at us, root's other processes included.

Source: ptrace(2), "Ptrace access mode checking"; setfsuid(2), setfsgid(2); proc_pid_mem(5).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from sandbox.syscalls import setfsids

__all__ = ["as_owner_of"]


@contextmanager
def as_owner_of(pid: int) -> Iterator[None]:
    """Be the user whose process it is, for the kernel's question who opens a file; then be oneself again.

    Raises:
        OSError: The process has ended.
    """
    theirs, ours = os.stat(f"/proc/{pid}"), os.geteuid()
    if ours != 0 or theirs.st_uid == ours:
        yield
        return
    setfsids(theirs.st_uid, theirs.st_gid)
    try:
        yield
    finally:
        setfsids(ours, os.getegid())
