"""How much a home holds: on disk, in entries, and in files that are open and have no name any more.

A home is measured while a hostile tool changes it, so nothing here follows a link, leaves the home or
goes over a mount, one folder is open at a time, and the walk ends at a number of entries.

Source: openat2(2), stat(2) on st_blocks, proc_pid_fd(5), proc_pid_maps(5).
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sandbox.guise import guise_of
from sandbox.syscalls import Resolve, openat2

__all__ = ["HomeUsage", "measure"]

_BLOCK_BYTES = 512
_WITHIN = Resolve.BENEATH | Resolve.NO_SYMLINKS | Resolve.NO_MAGICLINKS | Resolve.NO_XDEV
_HANDLE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A longer path cannot be opened from the top: what lies there cannot be counted.
_MOST_PATH_BYTES = 4000
_DELETED = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) ...(.) ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+) .* \(deleted\)$",
    re.MULTILINE,
)


@dataclass(slots=True)
class HomeUsage:
    """What a home holds.

    Attributes:
        bytes: On disk, in bytes: a sparse file counts by its blocks.
        entries: Files and folders, those without a name included.
    """

    bytes: int = 0
    entries: int = 0
    _counted: set[int] = field(default_factory=set)

    def count(self, found: os.stat_result) -> None:
        """Count a file or folder; one with several names once."""
        self.entries += 1
        if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
            if found.st_ino in self._counted:
                return
            self._counted.add(found.st_ino)
        self.bytes += found.st_blocks * _BLOCK_BYTES

    def count_unnamed(self, inode: int, size: int) -> None:
        """Count a file that has no name; once, however many hold it."""
        if inode not in self._counted:
            self._counted.add(inode)
            self.entries += 1
            self.bytes += size


def measure(
    home_fd: int, *, most_entries: int, processes: Iterable[int] = (), origin: int | None = None
) -> HomeUsage:
    """Measure a home.

    Args:
        home_fd: Descriptor of the home; `O_PATH` is enough.
        most_entries: Where to stop counting; the result is then larger than it by one or more.
        processes: Whose open and mapped files count too where they have no name. Those of another user
            id can be seen with CAP_SYS_PTRACE only.
        origin: The process that they were forked from. Libraries that it has mapped may have lost their
            names too, when a newer version came.
    """
    usage = HomeUsage()
    pending = ["."]
    while pending and usage.entries <= most_entries:
        path = pending.pop()
        if len(os.fsencode(path)) > _MOST_PATH_BYTES:
            # Nobody honest goes so deep.
            usage.entries += most_entries + 1
            break
        with contextlib.suppress(OSError):
            pending += _count_folder(home_fd, path, usage, most_entries)
    device = os.fstat(home_fd).st_dev
    inherited = frozenset[int]()
    if origin is not None:
        with contextlib.suppress(OSError), guise_of(origin):
            inherited = frozenset(inode for inode, _, private in _mapped(origin, device) if private)
    for pid in processes:
        # Ended, or not ours to look at.
        with contextlib.suppress(OSError), guise_of(pid):
            _count_unnamed(pid, device, usage, inherited)
    return usage


def _count_folder(home_fd: int, path: str, usage: HomeUsage, most_entries: int) -> list[str]:
    """Count what lies in a folder; return the folders in it."""
    folders: list[str] = []
    folder = _open(home_fd, path)
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    usage.count(entry.stat(follow_symlinks=False))
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{path}/{entry.name}")
                if usage.entries > most_entries:
                    break
    finally:
        os.close(folder)
    return folders


def _open(home_fd: int, path: str) -> int:
    handle = openat2(path, _HANDLE, directory=home_fd, resolve=_WITHIN)
    try:
        if os.fstat(handle).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            # Made so that its owner cannot list it: the host may be no more than that owner.
            os.chmod(f"/proc/self/fd/{handle}", stat.S_IRWXU)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=handle)
    finally:
        os.close(handle)


def _count_unnamed(pid: int, device: int, usage: HomeUsage, inherited: frozenset[int]) -> None:
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found = os.stat(f"/proc/{pid}/fd/{descriptor}")
            if found.st_nlink == 0 and found.st_dev == device and stat.S_ISREG(found.st_mode):
                usage.count_unnamed(found.st_ino, found.st_blocks * _BLOCK_BYTES)
    for inode, size, private in _mapped(pid, device):
        if not (private and inode in inherited):
            usage.count_unnamed(inode, size)


def _mapped(pid: int, device: int) -> Iterator[tuple[int, int, bool]]:
    """Yield files without a name that are mapped: how far into it, and whether it cannot be written so."""
    with open(f"/proc/{pid}/maps", "rb") as maps:
        text = maps.read()
    if b" (deleted)" not in text:
        return
    for first, last, kind, offset, major, minor, inode in _DELETED.findall(text):
        if os.makedev(int(major, 16), int(minor, 16)) == device:
            yield int(inode), int(offset, 16) + int(last, 16) - int(first, 16), kind == b"p"
