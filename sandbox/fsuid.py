"""Temporary change of one thread to the user id of a process, to read files about it.

Root may inspect every process only with CAP_SYS_PTRACE, which containers do not grant by default. With the
same user and group id no capability is needed, and a thread of root can take these temporarily with
CAP_SETUID and CAP_SETGID. Use it only for reading. Afterwards the kernel denies other processes without
CAP_SYS_PTRACE, even root's, access to this process.

Source: ptrace(2), "Ptrace access mode checking"; setfsuid(2), setfsgid(2); proc_pid_mem(5).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from sandbox.syscalls import setfsids

__all__ = ["as_owner_of"]


@contextmanager
def as_owner_of(pid: int) -> Iterator[None]:
    """Take the user and group id of a process's owner for opening files; restore them afterwards.

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
