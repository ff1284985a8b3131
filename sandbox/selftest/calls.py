"""System calls by name, raw, as an attacker makes them: past the C library and past Python's own functions.

Source: syscall(2); linux arch/x86/entry/syscalls/syscall_64.tbl; include/uapi/asm-generic/unistd.h.
"""

import ctypes
import errno
import os
from collections.abc import Mapping

from sandbox.layers.syscall_table import present_architecture

__all__ = ["MORE", "Argument", "call", "libc", "raised"]

Argument = int | bytes | bytearray | None | ctypes.Array[ctypes.c_char]

MORE: Mapping[str, tuple[int, int | None]] = {
    "brk": (12, 214),
    "copy_file_range": (326, 285),
    "execveat": (322, 281),
    "fallocate": (285, 47),
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
"""Numbers of calls that the filter has no reason to name, for x86_64 and aarch64."""

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
libc.mmap.restype = ctypes.c_void_p
libc.shmat.restype = ctypes.c_void_p


def call(name: str, *arguments: Argument) -> int:
    """Make a system call; return what the kernel answers.

    Raises:
        OSError: The kernel said no, or this architecture has no such call.
    """
    answer = libc.syscall(ctypes.c_long(_number(name)), *(_passed(argument) for argument in arguments))
    return raised(name, int(answer))


def raised(name: str, answer: int) -> int:
    """Return the answer of a C function; raise OSError where it says that it failed."""
    if answer == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return answer


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
    return ctypes.c_char_p(argument) if isinstance(argument, bytes) else argument
