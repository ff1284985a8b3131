"""View of /proc for confined processes: a few files about the machine, and their own.

With namespaces a zygote has its own /proc, where a process sees those it may trace: itself and descendants.
Sibling Landlock domains separate calls of one user there too. Files about the machine are hidden, except
those that libraries need; so the whole of /proc may be read.

Without namespaces /proc is shared. A Landlock rule applies to a folder that exists when the rule is made, and
the folder of a process appears with the process. So only a process whose rule was made after its fork may
read its own files. A forked worker would need a rule on all processes, which its zygote would also have while
it imports the tool file.

Source: proc(5), the mount options hidepid and subset; landlock(7); the kernel's fs/proc/base.c.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from sandbox.syscalls import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, mount

__all__ = ["MACHINE_FILES", "mount_own", "own_folder"]

MACHINE_FILES = (
    "/proc/cpuinfo",
    "/proc/filesystems",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/uptime",
    "/proc/version",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/pid_max",
    "/proc/sys/vm/overcommit_memory",
)
"""Single files: their folders would also reveal names of sockets, processes and mounts."""

_TOP = "/proc"
_HANDLE = os.O_PATH | os.O_CLOEXEC
_QUIET = MS_NOSUID | MS_NODEV | MS_NOEXEC


def own_folder(pid: int | None = None) -> Path:
    """Return the folder of a process, by default of this one, named by its pid and not by a link."""
    return Path(_TOP, str(pid or os.getpid()))


def mount_own() -> None:
    """Mount a /proc of this pid namespace, with every file hidden that calls do not need.

    Raises:
        OSError: It could not be mounted.
    """
    mount("proc", _TOP, kind="proc", flags=_QUIET, data="hidepid=ptraceable")
    deeper = [(path, os.open(path, _HANDLE)) for path in _deeper() if os.path.exists(path)]
    for entry in _others():
        if entry.is_dir(follow_symlinks=False):
            mount("tmpfs", entry.path, kind="tmpfs", flags=_QUIET, data="size=4k,mode=0755")
        else:
            mount("/dev/null", entry.path, flags=MS_BIND)
    for path, source in deeper:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
        mount(f"/proc/self/fd/{source}", path, flags=MS_BIND)
        os.close(source)


def _deeper() -> Iterator[str]:
    return (path for path in MACHINE_FILES if path.count("/") > _TOP.count("/") + 1)


def _others() -> list[os.DirEntry[str]]:
    """Return the entries of /proc except processes, links and the files that stay visible."""
    with os.scandir(_TOP) as entries:
        return [
            entry
            for entry in entries
            if not entry.name.isdigit() and not entry.is_symlink() and entry.path not in MACHINE_FILES
        ]
