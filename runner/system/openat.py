"""Folders and files opened in folders that are held open, so that no link and no rename leads elsewhere.

Source: openat2(2), ioctl_ficlone(2).
"""

import errno
import fcntl
import os
import stat

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

# What a path that a tool had a hand in is resolved with: it stays below its folder, whatever lies there.
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
        resolve: The restrictions, as `CONFINED` has them all.

    Raises:
        OSError: `ELOOP` for a link, `EXDEV` for a path that leads out or over a mount, or as `os.open`.
    """
    if "\0" in path:
        raise ValueError(f"a path cannot contain a null character: {path!r}")
    for _attempt in range(_RACES):
        try:
            return syscalls.openat2(path, flags | os.O_CLOEXEC, directory=dir_fd, resolve=resolve, mode=mode)
        except OSError as error:
            number = error.errno or 0
            # EAGAIN: a rename elsewhere kept the kernel from proving that the path stays below its folder.
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
    """Open the folder of a descriptor for listing and changing, as `open_folder`; return a new descriptor.

    Raises:
        OSError: `ENOTDIR` if it is not a folder, `EACCES` or `EPERM` if it is not ours.
    """
    mode = os.fstat(handle).st_mode
    if stat.S_ISDIR(mode) and mode & stat.S_IRWXU != stat.S_IRWXU:
        # A handle cannot be given to fchmod, but its link in /proc leads to what it holds.
        os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(mode) | stat.S_IRWXU)
    return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=handle)


def ficlone(source_fd: int, target_fd: int) -> bool:
    """Make the empty target share the source's blocks until either is written; False where it cannot.

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
    """Copy so many bytes from the start of a file to an empty one, by sharing its blocks where that works.

    Raises:
        OSError: The disk is full, or either file cannot be used.
    """
    if ficlone(source_fd, target_fd):
        return
    done = 0
    while done < size and (count := os.sendfile(target_fd, source_fd, done, size - done)):
        done += count
