"""Layer `privileges`: no capability, no way to gain one, and no life without the parent.

Source: capabilities(7), prctl(2), PR_SET_PDEATHSIG(2const).
"""

import errno
import os
import signal

from sandbox.syscalls import (
    PR_CAP_AMBIENT,
    PR_CAP_AMBIENT_CLEAR_ALL,
    PR_CAPBSET_DROP,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    PR_SET_SECUREBITS,
    drop_capability_sets,
    prctl,
)

__all__ = [
    "adopt_orphans",
    "close_bounds",
    "die_with_parent",
    "drop_capabilities",
    "refuse_new_privileges",
]

_MOST_CAPABILITIES = 64
# NOROOT, NO_SETUID_FIXUP and their locks, and the lock of KEEP_CAPS: user id 0 loses its special meaning.
_SECURE_BITS = 0x2F


def close_bounds() -> None:
    """Prevent gaining capabilities by exec or as user 0. Call it before a change of user id."""
    try:
        _drop_bounding_set()
        prctl(PR_SET_SECUREBITS, _SECURE_BITS)
    except PermissionError:
        # Neither can be changed without CAP_SETPCAP. Held capabilities are dropped anyway,
        # and no_new_privs keeps exec from adding any.
        pass


def drop_capabilities() -> None:
    """Drop every capability of this process. Call it after a change of user id, which needs one."""
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    drop_capability_sets()


def refuse_new_privileges() -> None:
    """Set no_new_privs, without which the kernel refuses Landlock and seccomp."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def die_with_parent(parent: int) -> None:
    """Request SIGKILL from the kernel at the end of the parent.

    Args:
        parent: Its process id; 0 if it is outside this process's pid namespace. The caller must then
            check by other means that it has not ended before.

    Raises:
        ProcessLookupError: The parent is not `parent` any more: it ended before the request.
    """
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise ProcessLookupError(errno.ESRCH, f"the parent process {parent} has ended already")


def adopt_orphans() -> None:
    """Become the subreaper of all descendants, so that none is reparented outside."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def _drop_bounding_set() -> None:
    for capability in range(_MOST_CAPABILITIES):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return
            raise
