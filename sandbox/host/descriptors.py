"""Descriptors of this process and of another: the number open, and the limit.

Each pool and each connection uses some of the host's. The default soft limit is 1,024; most systems have a
far higher hard limit.

Source: getrlimit(2) on RLIMIT_NOFILE; proc_pid_fd(5), whose size is their number from Linux 6.2 on.
"""

import os
import resource

__all__ = ["are_plenty", "left", "limit", "open_in", "open_now", "raise_limit"]

_FDS = "/proc/self/fd"
# A quarter of the limit stays free of anything made ahead of need.
_KEPT_FREE = 4
# A higher limit is not worth its kernel tables; some systems set a billion.
_MOST = 1 << 20


def raise_limit() -> int:
    """Raise the descriptor limit of this process as far as it can without more privileges; return it.

    Processes started afterwards inherit it. Zygotes and workers get limits of their own.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return limit()


def limit() -> int:
    """Return the number of descriptors that this process may have open."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else soft


def open_now() -> int:
    """Return the number of open descriptors of this process."""
    return os.stat(_FDS).st_size or len(os.listdir(_FDS))


def open_in(pid: int) -> int:
    """Return the number of open descriptors of a process; 0 if it has ended, or on Linux before 6.2.

    It takes one system call, and no permission to inspect the process.
    """
    try:
        return os.stat(f"/proc/{pid}/fd").st_size
    except OSError:
        return 0


def left() -> int:
    """Return the number of descriptors that this process may still open."""
    return limit() - open_now()


def are_plenty() -> bool:
    """Return whether enough descriptors are left to make something ahead of need."""
    return left() > limit() // _KEPT_FREE
