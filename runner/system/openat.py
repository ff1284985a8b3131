"""System calls on files that Python's `os` lacks: `openat2`, `renameat2`, `statx`, the reflink of `FICLONE`.

Source: openat2(2), rename(2), statx(2), ioctl_ficlone(2).
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
    "birth_ns",
    "ficlone",
    "open_folder",
    "openat2",
    "rename_noreplace",
    "reopen_folder",
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
_STATX = {"x86_64": 332, "aarch64": 291}
_AT_EMPTY_PATH = 0x1000
_STATX_BTIME = 0x800
_FICLONE = 0x40049409
_RACES = 32

_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class _Statx(ctypes.Structure):
    """The parts of `struct statx` that are read here; 256 bytes in all."""

    _fields_ = (
        ("mask", ctypes.c_uint32),
        ("_before", ctypes.c_uint8 * 76),
        ("born_s", ctypes.c_int64),
        ("born_ns", ctypes.c_uint32),
        ("_after", ctypes.c_uint8 * 164),
    )


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
    handle = openat2(dir_fd, name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, resolve=CONFINED)
    try:
        return reopen_folder(handle)
    finally:
        os.close(handle)


def reopen_folder(handle: int) -> int:
    """Open the folder of a descriptor for listing and changing, as `open_folder`; return a new descriptor.

    Raises:
        OSError: `ENOTDIR` if it is no folder, `EACCES` or `EPERM` if it is not ours.
    """
    mode = os.fstat(handle).st_mode
    if stat.S_ISDIR(mode) and mode & stat.S_IRWXU != stat.S_IRWXU:
        # A handle cannot be given to fchmod, but its link in /proc leads to what it holds.
        os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(mode) | stat.S_IRWXU)
    return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=handle)


def rename_noreplace(source: str, target: str, *, dir_fd: int) -> None:
    """Rename within one folder, unless the new name is taken.

    Raises:
        FileExistsError: The new name is taken, by whatever it may be.
        OSError: As `os.rename`.
    """
    failed = _libc.syscall(
        ctypes.c_long(_number(_RENAMEAT2)),
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


def birth_ns(fd: int) -> int | None:
    """Return when the file was made, in nanoseconds since the epoch; None where the file system forgot.

    With the inode number it names a file for good: a number alone goes to the next file made.
    """
    found = _Statx()
    failed = _libc.syscall(
        ctypes.c_long(_number(_STATX)),
        ctypes.c_int(fd),
        ctypes.c_char_p(b""),
        ctypes.c_int(_AT_EMPTY_PATH),
        ctypes.c_uint(_STATX_BTIME),
        ctypes.byref(found),
    )
    if failed or not found.mask & _STATX_BTIME:
        return None
    return int(found.born_s) * 1_000_000_000 + int(found.born_ns)


def _number(numbers: dict[str, int]) -> int:
    machine = os.uname().machine
    if machine not in numbers:
        raise OSError(errno.ENOSYS, f"a system call has no known number on {machine}")
    return numbers[machine]
