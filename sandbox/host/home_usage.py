"""Usage of a home: bytes on disk, entries, and open files without a name.

A home is measured while a hostile tool changes it. So the walk never follows a link, leaves the home or
crosses a mount, keeps one folder open at a time, and stops after a number of entries.

Two kinds of files without a name cannot be measured: one whose only descriptor is in flight in a socket, and
one that is partly mapped and open nowhere. They can be detected. Then the home is charged with all space that
its disk has lost (`HomeDisk`), whatever the cause.

Source: openat2(2), stat(2) on st_blocks, statvfs(3), proc_pid_fd(5), proc_pid_maps(5), proc_pid_fdinfo(5);
unix_show_fdinfo() in the kernel's net/unix/af_unix.c on scm_fds.
"""

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sandbox.fsuid import as_owner_of
from sandbox.host.mapped_files import mapped_files, shared_files
from sandbox.host.process_stat import read_proc
from sandbox.host.usage import descriptors_of
from sandbox.syscalls import Resolve, openat2

__all__ = ["HomeDisk", "HomeUsage", "OpenFiles", "Seen", "measure", "open_files"]

Seen = Callable[[str, os.stat_result], None]
"""Callback for each counted entry: its path below the home, as `./folder/file`, and its stat result."""

_BLOCK_BYTES = 512
_WITHIN = Resolve.BENEATH | Resolve.NO_SYMLINKS | Resolve.NO_MAGICLINKS | Resolve.NO_XDEV
_HANDLE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A longer path cannot be opened from the top, so its content cannot be counted.
_MOST_PATH_BYTES = 4000
_IN_SOCKETS = re.compile(rb"^scm_fds: ([1-9]\d*)$", re.MULTILINE)


@dataclass(slots=True)
class HomeUsage:
    """Content of a home.

    Attributes:
        bytes: Bytes on disk: a sparse file counts by its blocks.
        entries: Files and folders, unnamed files included.
        hides: Whether its processes hold possible files that cannot be measured.
    """

    bytes: int = 0
    entries: int = 0
    hides: bool = False
    _counted: set[int] = field(default_factory=set)

    def count(self, found: os.stat_result) -> None:
        """Count a file or folder; hard links to one file count once."""
        self.entries += 1
        if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
            if found.st_ino in self._counted:
                return
            self._counted.add(found.st_ino)
        self.bytes += found.st_blocks * _BLOCK_BYTES

    def count_unnamed(self, inode: int, size: int) -> bool:
        """Count an unnamed file once, however many processes hold it; return whether it is new."""
        if inode in self._counted:
            return False
        self._counted.add(inode)
        self.entries += 1
        self.bytes += size
        return True


@dataclass(slots=True)
class HomeDisk:
    """Loss of free space in a home's file system since its maximum, from any cause.

    Attributes:
        folder: Descriptor of the home; `O_PATH` is enough.
        free_bytes: Free bytes at the last reading.
        free_entries: Free inodes at the last reading; 0 where the file system does not count them.
    """

    folder: int
    free_bytes: int = field(init=False, default=0)
    free_entries: int = field(init=False, default=0)
    _most_free_bytes: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.ask()

    def ask(self) -> None:
        """Read the free space."""
        found = os.fstatvfs(self.folder)
        self.free_bytes, self.free_entries = found.f_bfree * found.f_frsize, found.f_ffree
        self._most_free_bytes = max(self._most_free_bytes, self.free_bytes)

    @property
    def lost_bytes(self) -> int:
        """Return the loss of free space since its maximum, at the last reading."""
        return self._most_free_bytes - self.free_bytes


def measure(
    home_fd: int,
    *,
    most_entries: int,
    processes: Iterable[int] = (),
    origin: int | None = None,
    seen: Seen | None = None,
) -> HomeUsage:
    """Measure a home.

    Args:
        home_fd: Descriptor of the home; `O_PATH` is enough.
        most_entries: Where to stop counting; the result is then larger than it by one or more.
        processes: Processes whose open and mapped unnamed files count too. Those of another user id are
            visible only with CAP_SYS_PTRACE.
        origin: The process that they were forked from. Its mapped libraries may have lost their names
            too, when a newer version was installed.
        seen: Called with each entry of the home.
    """
    usage = HomeUsage()
    pending = ["."]
    while pending and usage.entries <= most_entries:
        path = pending.pop()
        if len(os.fsencode(path)) > _MOST_PATH_BYTES:
            # No honest tool nests folders so deeply.
            usage.entries += most_entries + 1
            break
        with contextlib.suppress(OSError):
            pending += _count_folder(home_fd, path, usage, most_entries, seen)
    device = os.fstat(home_fd).st_dev
    inherited = frozenset[int]()
    if origin is not None:
        with contextlib.suppress(OSError), as_owner_of(origin):
            inherited = frozenset(file.inode for file in mapped_files(origin, device) if file.private)
    mapped: dict[int, int] = {}
    for pid in processes:
        # Ended, or not accessible to us.
        with contextlib.suppress(OSError), as_owner_of(pid):
            _count_open(*descriptors_of(pid), device, usage)
            for file in mapped_files(pid, device):
                if not (file.private and file.inode in inherited):
                    mapped[file.inode] = max(file.size, mapped.get(file.inode, 0))
    for inode, size in mapped.items():
        # The last mapped byte is a lower bound of the file's size, which cannot be read.
        usage.hides |= usage.count_unnamed(inode, size)
    return usage


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFiles:
    """Open files of a process.

    Attributes:
        descriptors: Number of descriptors; 0 if it has ended, or if the kernel denies access.
        unnamed_bytes: Size of the unnamed files that it holds open or mapped writable.
    """

    descriptors: int = 0
    unnamed_bytes: int = 0


def open_files(pid: int, device: int | None) -> OpenFiles:
    """Return the open files of a process, listed once.

    Args:
        pid: The process.
        device: Number of the file system whose unnamed files count; None to count none.
    """
    usage = HomeUsage()
    descriptors: list[str] = []
    # Ended, or not accessible to us.
    with contextlib.suppress(OSError), as_owner_of(pid):
        folder, descriptors = descriptors_of(pid)
        if device is not None:
            _count_open(folder, descriptors, device, usage)
            # Private mappings are libraries, which lose their names when a newer version is installed.
            for file in shared_files(pid, device):
                usage.count_unnamed(file.inode, file.size)
    return OpenFiles(descriptors=len(descriptors), unnamed_bytes=usage.bytes)


def _count_folder(
    home_fd: int, path: str, usage: HomeUsage, most_entries: int, seen: Seen | None
) -> list[str]:
    """Count the entries of a folder; return its subfolders."""
    folders: list[str] = []
    folder = _open(home_fd, path)
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    found = entry.stat(follow_symlinks=False)
                    usage.count(found)
                    if seen is not None:
                        seen(f"{path}/{entry.name}", found)
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
            # The folder's mode may deny listing to its owner, and the host may have that user id.
            os.chmod(f"/proc/self/fd/{handle}", stat.S_IRWXU)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=handle)
    finally:
        os.close(handle)


def _count_open(folder: str, descriptors: list[str], device: int, usage: HomeUsage) -> None:
    """Count the unnamed files that a process has open, and note whether its sockets hold more."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            found = os.stat(f"{folder}/fd/{descriptor}")
            if stat.S_ISSOCK(found.st_mode):
                usage.hides |= _IN_SOCKETS.search(read_proc(f"{folder}/fdinfo/{descriptor}")) is not None
            elif found.st_nlink == 0 and found.st_dev == device and stat.S_ISREG(found.st_mode):
                usage.count_unnamed(found.st_ino, found.st_blocks * _BLOCK_BYTES)
