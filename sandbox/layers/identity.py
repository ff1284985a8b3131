"""Layer `identity`: a user and group id of the zygote's own, and no other group.

Files and processes of the host and of other users are then protected by ordinary Unix permissions, signals
included. The limit on the number of processes, which counts by user id, then counts one user.

Source: credentials(7), setresuid(2), setgroups(2), PR_SET_DUMPABLE(2const).
"""

import os

from sandbox.syscalls import PR_SET_DUMPABLE, prctl

__all__ = ["apply"]


def apply(uid: int, gid: int | None = None) -> None:
    """Become `uid`, in all forms of user and group id, and leave every other group.

    Args:
        uid: The user id.
        gid: The group id; by default the same number.

    Raises:
        OSError: The id does not exist in this user namespace, or the privilege is missing.
    """
    os.setgroups([])
    group = uid if gid is None else gid
    os.setresgid(group, group, group)
    os.setresuid(uid, uid, uid)
    # As after an exec. Otherwise this process's files in /proc would belong to root, and a host without
    # CAP_SYS_PTRACE, the default in containers, could not read them.
    prctl(PR_SET_DUMPABLE, 1)
