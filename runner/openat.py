"""System calls on files that Python's `os` lacks: `openat2`, `renameat2`, and the reflink of `FICLONE`.

Source: openat2(2), rename(2), ioctl_ficlone(2).
"""

import ctypes
import errno
import fcntl
import os
import stat

__all__ = [
    "CONFINED",
    "RESOLVE_BENEATH",
    "RESOLVE_NO_MAGICLINKS",
    "RESOLVE_NO_SYMLINKS",
    "RESOLVE_NO_XDEV",
    "ficlone",
    "open_folder",
    "openat2",
    "rename_noreplace",
]

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
# What a path that a tool had a hand in is resolved with: it stays below its folder, whatever lies there.
CONFINED = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV

_OPENAT2 = 437
_RENAMEAT2 = {"x86_64": 316, "aarch64": 276}
_RENAME_NOREPLACE = 1
_FICLONE = 0x40049409
_RACES = 32

_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def openat2(dir_fd: int, path: str, flags: int, *, mode: int = 0, resolve: int) -> int:
    """Open `path` relative to `dir_fd` with restrictions on how it is resolved; return the descriptor.

    Args:
        dir_fd: The folder that the path starts from.
        path: The path, as for `os.open`.
        flags: As for `os.open`. `O_CLOEXEC` is added.
        mode: Permissions of a file that `flags` creates; 0 otherwise.
        resolve: The `RESOLVE_` restrictions, as `CONFINED` has them all.

    Raises:
        OSError: `ELOOP` for a link, `EXDEV` for a path that leads out or over a mount, or as `os.open`.
    """
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError(f"a path cannot contain a null character: {path!r}")
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve)
    for _attempt in range(_RACES):
        fd: int = _libc.syscall(
            ctypes.c_long(_OPENAT2),
            ctypes.c_int(dir_fd),
            ctypes.c_char_p(name),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        # EAGAIN: a rename elsewhere kept the kernel from proving that the path stays below its folder.
        if number not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(number, os.strerror(number), path)


def open_folder(dir_fd: int, name: str) -> int:
    """Open the folder `name` directly below `dir_fd` for listing and changing; return the descriptor.

    A folder of ours that lacks the permissions for it gets them.

    Raises:
        OSError: `ENOTDIR` or `ELOOP` if it is no folder, `EXDEV` if something is mounted on it.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    handle = openat2(dir_fd, name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, resolve=CONFINED)
    try:
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            # A handle cannot be given to fchmod, but its link in /proc leads to the folder it holds.
            os.chmod(f"/proc/self/fd/{handle}", mode | stat.S_IRWXU)
        return os.open(".", flags | os.O_CLOEXEC, dir_fd=handle)
    finally:
        os.close(handle)


def rename_noreplace(source: str, target: str, *, dir_fd: int) -> None:
    """Rename within one folder, unless the new name is taken.

    Raises:
        FileExistsError: The new name is taken, by whatever it may be.
        OSError: As `os.rename`.
    """
    number = _RENAMEAT2.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, f"renameat2 is not known for {os.uname().machine}", target)
    failed = _libc.syscall(
        ctypes.c_long(number),
        ctypes.c_int(dir_fd),
        ctypes.c_char_p(os.fsencode(source)),
        ctypes.c_int(dir_fd),
        ctypes.c_char_p(os.fsencode(target)),
        ctypes.c_uint(_RENAME_NOREPLACE),
    )
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


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
