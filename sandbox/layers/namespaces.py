"""Layer `namespaces`: own processes, network, queues and host name of a zygote; for files see `mounts`.

A pid namespace begins with a fork, so the forkserver makes it: the zygote is its init process, at whose end
the kernel kills every other, whatever its session or parent. The network namespace has a loopback that is
down. Without privilege a user namespace is made first, in which the others are allowed: one for each zygote,
as the kernel counts processes by user id and user namespace (Linux 5.14).

Source: namespaces(7), pid_namespaces(7), user_namespaces(7), network_namespaces(7), getrlimit(2) on
RLIMIT_NPROC; inc_rlimit_ucounts() in the kernel's kernel/ucount.c.
"""

import errno
import os

from sandbox.syscalls import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    unshare,
)

__all__ = ["apply", "enter_user_namespace", "fork_first_process", "needs_user_namespace"]

_CAP_SYS_ADMIN = 21


def apply() -> None:
    """Unshare mounts, network, queues and host name from the host."""
    unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS)


def needs_user_namespace() -> bool:
    """Return whether this process needs a user namespace to make any other one."""
    with open("/proc/self/status", encoding="utf-8") as status:
        held = next(int(line.split()[1], 16) for line in status if line.startswith("CapEff:"))
    return not held >> _CAP_SYS_ADMIN & 1


def enter_user_namespace() -> None:
    """Enter a user namespace that maps only this user and group, each to itself."""
    uid, gid = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER)
    # The kernel lets an unprivileged user map a group only after setgroups is denied.
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="utf-8") as file:
            file.write(text)


def fork_first_process(*, own_users: bool = False) -> int:
    """Fork the init process of a new pid namespace; return like `os.fork`, with its pid outside.

    A process can unshare the pid namespace of its children only once, so an intermediate child does it. This
    process must be a subreaper: it adopts the init process when the intermediate child has ended.

    Args:
        own_users: Whether to make a user namespace first; see `needs_user_namespace`.

    Raises:
        OSError: The namespace could not be made.
    """
    answer, notify = os.pipe()
    go, let_go = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(answer)
        os.close(let_go)
        return _be_between(notify, go, own_users=own_users)
    os.close(notify)
    os.close(go)
    received = os.read(answer, 64)
    os.close(answer)
    os.waitpid(between, 0)
    try:
        if not received.isdigit():
            number = int(received.removeprefix(b"-") or errno.ECHILD)
            raise OSError(number, f"no pid namespace could be made: {os.strerror(number)}")
        os.write(let_go, b"1")
    finally:
        os.close(let_go)
    return int(received)


def _be_between(notify: int, go: int, *, own_users: bool) -> int:
    """Make the namespace, fork its init process and exit; return in the init process only."""
    try:
        if own_users:
            enter_user_namespace()
        unshare(CLONE_NEWPID)
        pid = os.fork()
    except OSError as error:
        os.write(notify, f"-{error.errno}".encode())
        os._exit(1)
    if pid:
        os.write(notify, str(pid).encode())
        os._exit(0)
    os.close(notify)
    # Wait until the intermediate process is reaped: its death must not be taken for that of the parent.
    if not os.read(go, 1):
        os._exit(0)
    os.close(go)
    return 0
