"""Folders and files opened relative to open folders, so that no link and no rename leads elsewhere.

Source: openat2(2), ioctl_ficlone(2), lseek(2) on SEEK_DATA.
"""

import errno
import fcntl
import os
import stat
import sys

from sandbox import syscalls
from sandbox.syscalls import Resolve

__all__ = [
    "CONFINED",
    "copy_into",
    "ficlone",
    "open_folder",
    "openat2",
    "reopen_folder",
]

# Restrictions for paths that a tool can influence: they stay below their folder.
CONFINED = Resolve.BENEATH | Resolve.NO_SYMLINKS | Resolve.NO_MAGICLINKS | Resolve.NO_XDEV

_FICLONE = 0x40049409
_RACES = 32


def openat2(dir_fd: int, path: str, flags: int, *, mode: int = 0, resolve: Resolve) -> int:
    """Open `path` relative to `dir_fd` with restrictions on how it is resolved; return the descriptor.

    Args:
        dir_fd: The folder that the path starts from.
        path: The path, as for `os.open`.
        flags: As for `os.open`. `O_CLOEXEC` is added.
        mode: Permissions of a file that `flags` creates; 0 otherwise.
        resolve: The restrictions, such as `CONFINED`.

    Raises:
        OSError: `ELOOP` for a link, `EXDEV` for a path that leads out or across a mount, or as `os.open`.
    """
    if "\0" in path:
        raise ValueError(f"a path cannot contain a null character: {path!r}")
    for _attempt in range(_RACES):
        try:
            return syscalls.openat2(path, flags | os.O_CLOEXEC, directory=dir_fd, resolve=resolve, mode=mode)
        except OSError as error:
            number = error.errno or 0
            # EAGAIN: a concurrent rename kept the kernel from proving that the path stays below its folder.
            if number not in (errno.EAGAIN, errno.EINTR):
                break
    raise OSError(number, os.strerror(number), path)


def open_folder(dir_fd: int, name: str) -> int:
    """Open the folder `name` directly below `dir_fd` for listing and changing; return the descriptor.

    A folder of ours that lacks the permissions for it gets them.

    Raises:
        OSError: `ENOTDIR` or `ELOOP` if it is not a folder, `EXDEV` if something is mounted on it.
    """
    handle = openat2(dir_fd, name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, resolve=CONFINED)
    try:
        return reopen_folder(handle)
    finally:
        os.close(handle)


def reopen_folder(handle: int) -> int:
    """Open the folder of a descriptor for listing and changing, like `open_folder`; return a new descriptor.

    Raises:
        OSError: `ENOTDIR` if it is not a folder, `EACCES` or `EPERM` if it is not ours.
    """
    mode = os.fstat(handle).st_mode
    if stat.S_ISDIR(mode) and mode & stat.S_IRWXU != stat.S_IRWXU:
        # fchmod refuses an O_PATH descriptor, but chmod accepts its link in /proc.
        os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(mode) | stat.S_IRWXU)
    return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=handle)


def ficlone(source_fd: int, target_fd: int) -> bool:
    """Make the empty target share the source's blocks until either is written; return False if unsupported.

    Raises:
        OSError: The disk or the quota is full, or the device failed.
    """
    try:
        fcntl.ioctl(target_fd, _FICLONE, source_fd)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        return False
    return True


def copy_into(target_fd: int, source_fd: int, size: int) -> None:
    """Copy `size` bytes from the start of a file to an empty one, by sharing its blocks if possible.

    Holes stay holes, and the source's offset moves: a sparse file must not fill the disk.

    Raises:
        OSError: The disk is full, or either file cannot be used.
    """
    if ficlone(source_fd, target_fd):
        return
    done = 0
    while done < size and (start := _next_data(source_fd, done)) < size:
        done = start
        end = min(os.lseek(source_fd, start, os.SEEK_HOLE), size)
        os.lseek(target_fd, start, os.SEEK_SET)
        while done < end and (count := os.sendfile(target_fd, source_fd, done, end - done)):
            done += count
        if done < end:
            # The source was truncated meanwhile.
            return
    os.ftruncate(target_fd, size)


def _next_data(fd: int, offset: int) -> int:
    """Return the start of the next data of a file, or its end."""
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return sys.maxsize
