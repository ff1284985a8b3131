"""Raw system calls by name, as an attacker makes them: bypassing the C library and Python's functions.

Source: syscall(2); linux arch/x86/entry/syscalls/syscall_64.tbl; include/uapi/asm-generic/unistd.h.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Callable, Mapping
from types import EllipsisType

from sandbox.layers.syscall_table import present_architecture
from sandbox.selftest.attempt import Surroundings

__all__ = [
    "AT_CWD",
    "AT_EMPTY_PATH",
    "MORE",
    "WAYS",
    "Way",
    "attached",
    "call",
    "filled",
    "libc",
    "opened",
    "opened_by_handle",
    "put",
    "raised",
    "raw",
    "seize",
    "taken",
    "transferred",
]

Way = Callable[[Surroundings, int], int]
Argument = int | str | bytes | bytearray | None | ctypes.Array[ctypes.c_char]

AT_CWD, AT_EMPTY_PATH = -100, 0x1000
_PTRACE_SEIZE, _PTRACE_INTERRUPT, _WALL = 0x4206, 0x4207, 0x4000_0000
_MOST_BYTES = 8192

MORE: Mapping[str, tuple[int, int | None]] = {
    "brk": (12, 214),
    "copy_file_range": (326, 285),
    "execveat": (322, 281),
    "fallocate": (285, 47),
    "getdents64": (217, 61),
    "getxattr": (191, 8),
    "ioprio_get": (252, 31),
    "linkat": (265, 37),
    "mknodat": (259, 33),
    "mremap": (25, 216),
    "open": (2, None),
    "openat": (257, 56),
    "openat2": (437, 437),
    "renameat2": (316, 276),
    "setrlimit": (160, 164),
    "statx": (332, 291),
    "timer_create": (222, 107),
    "unlinkat": (263, 35),
}
"""Numbers of calls that the filter does not name, for x86_64 and aarch64."""

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
libc.mmap.restype = ctypes.c_void_p
libc.shmat.restype = ctypes.c_void_p


def call(name: str, *arguments: Argument) -> int:
    """Make a system call; return its result.

    Raises:
        OSError: The call failed, or this architecture does not have it.
    """
    answer = libc.syscall(ctypes.c_long(_number(name)), *(_passed(argument) for argument in arguments))
    return raised(name, int(answer))


def raised(name: str, answer: int) -> int:
    """Return the result of a C function; raise OSError if it reports a failure."""
    if answer == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return answer


def filled(name: str, *arguments: Argument | EllipsisType, skip: int = 0) -> bytes:
    """Make a system call with a buffer for the argument `...`; return its content after `skip` bytes."""
    buffer = ctypes.create_string_buffer(_MOST_BYTES)
    length = call(name, *(buffer if isinstance(each, EllipsisType) else each for each in arguments))
    return buffer.raw[skip : skip + length]


def opened(path: str, flags: int, mode: int = 0) -> int:
    """Open a file by openat(2)."""
    return call("openat", AT_CWD, path, flags, mode)


def opened_by_handle(path: str, mounted: str, flags: int) -> int:
    """Open a file by its handle, in the mount that contains the folder `mounted`."""
    handle, mount = bytearray(struct.pack("=Ii", 128, 0) + bytes(128)), bytearray(4)
    call("name_to_handle_at", AT_CWD, path, handle, mount, 0)
    return call("open_by_handle_at", os.open(mounted, os.O_RDONLY), handle, flags)


def put(descriptor: int, data: bytes = b"written") -> None:
    """Write data, and close."""
    os.write(descriptor, data)
    os.close(descriptor)


def taken(descriptor: int) -> str:
    """Read once, and close."""
    try:
        return os.read(descriptor, _MOST_BYTES).decode(errors="replace")
    finally:
        os.close(descriptor)


def raw(path: str) -> str:
    """Read the beginning of a file by openat(2)."""
    return taken(opened(path, os.O_RDONLY))


def attached(segment: int, flags: int) -> int:
    """Return the address at which a segment of System V shared memory was attached."""
    at = libc.shmat(segment, None, flags)
    return raised("shmat", -1) if at is None or at == ctypes.c_void_p(-1).value else int(at)


def seize(pid: int) -> None:
    """Attach to a process by ptrace(2), and stop it."""
    call("ptrace", _PTRACE_SEIZE, pid, None, None)
    call("ptrace", _PTRACE_INTERRUPT, pid, None, None)
    os.waitpid(pid, _WALL)


def transferred(name: str, pid: int, address: int, data: bytes) -> bytes:
    """Call process_vm_readv(2) or process_vm_writev(2) with a copy of `data`; return its content after it."""
    buffer = ctypes.create_string_buffer(data, len(data))
    ours, theirs = (struct.pack("=QQ", at, len(data)) for at in (ctypes.addressof(buffer), address))
    call(name, pid, ours, 1, theirs, 1, 0)
    return buffer.raw


def _number(name: str) -> int:
    architecture = present_architecture()
    if architecture is None:
        raise OSError(errno.ENOSYS, "no table of system calls for this architecture")
    if name in architecture.numbers:
        return architecture.number(name)
    number = MORE[name][0 if architecture.name == "x86_64" else 1] if name in MORE else None
    if number is None:
        raise OSError(errno.ENOSYS, f"{name} does not exist on {architecture.name}")
    return number


def _passed(argument: Argument) -> object:
    if isinstance(argument, int):
        return ctypes.c_long(argument)
    if isinstance(argument, bytearray):
        return (ctypes.c_char * len(argument)).from_buffer(argument)
    data = argument.encode() if isinstance(argument, str) else argument
    return ctypes.c_char_p(data) if isinstance(data, bytes) else data


def _by_link(place: Surroundings, flags: int) -> int:
    os.symlink(place.file, f"{place.home}/way")
    return opened(f"{place.home}/way", flags)


def _by_folder(place: Surroundings, flags: int) -> int:
    os.chdir(place.other)
    return opened("file.txt", flags)


WAYS: Mapping[str, Way] = {
    "openat2: openat2(2)": lambda p, flags: call(
        "openat2", AT_CWD, p.file, struct.pack("=QQQ", flags, 0, 0), 24
    ),
    "through-link: a symbolic link in the own home": _by_link,
    "through-root: the magic link /proc/self/root": lambda p, flags: opened(
        f"/proc/self/root{p.file}", flags
    ),
    "through-folder: chdir(2), then a relative path": _by_folder,
    "through-descriptor: an O_PATH descriptor opened again by /proc/self/fd": lambda p, flags: opened(
        f"/proc/self/fd/{opened(p.file, os.O_PATH)}", flags
    ),
}
"""Ways to open another user's file, with any flags, other than by its path in `openat`."""
