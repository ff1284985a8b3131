"""Attempts of kind `write`: change anything outside the one folder that may be written.

Source: open(2), openat2(2), rename(2), link(2), mknod(2), chmod(2), chown(2), utimensat(2), setxattr(2),
ioctl_iflags(2), mount(2), move_mount(2), io_uring(7), open_by_handle_at(2).
"""

import ctypes
import fcntl
import mmap
import os
import socket
import stat
import struct
import subprocess
import threading
from functools import partial

from sandbox.selftest.attempt import AttemptKind, Oracle, Rows, Surroundings, rows
from sandbox.selftest.calls import (
    AT_CWD,
    AT_EMPTY_PATH,
    WAYS,
    Way,
    call,
    libc,
    opened,
    opened_by_handle,
    put,
    raised,
)

__all__ = ["WRITING"]

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_AT_SYMLINK_FOLLOW = 0x400
_EXCHANGE = 2
_MS_BIND = 4096
_OPEN_TREE_CLONE, _MOVE_EMPTY_PATH, _CREATE_MOUNT = 1, 4, 6
_GET_FLAGS, _SET_FLAGS, _NODUMP = 0x8008_6601, 0x4008_6602, 0x40
_GET_XFLAGS, _SET_XFLAGS, _SET_VERSION = 0x801C_581F, 0x401C_5820, 0x4008_7602
_MKDIRAT = 37
_MAP_PRIVATE_ANONYMOUS_32BIT = 0x62
_I386_CHMOD = 15
_ONE_SECOND = struct.pack("=4q", 1, 0, 1, 0)


def _made_in_home(kind: int) -> Oracle:
    return lambda world, _: any(stat.S_IFMT(path.lstat().st_mode) == kind for path in world.path.iterdir())


def _read_only(place: Surroundings) -> int:
    return os.open(place.readable, os.O_RDONLY)


def _open(place: Surroundings) -> None:
    with open(place.file, "a") as file:
        file.write("written")


def _nameless(place: Surroundings) -> None:
    descriptor = opened(place.other, os.O_TMPFILE | os.O_WRONLY, 0o600)
    target = f"{place.other}/new.txt"
    call("linkat", AT_CWD, f"/proc/self/fd/{descriptor}", AT_CWD, target, _AT_SYMLINK_FOLLOW)


def _mapped(place: Surroundings) -> None:
    descriptor = opened(place.file, os.O_RDWR)
    with mmap.mmap(descriptor, 0) as memory:
        memory[:3] = b"new"
    os.close(descriptor)


def _named_socket(place: Surroundings) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{place.home}/socket")


def _setxattrat(place: Surroundings) -> None:
    value = ctypes.create_string_buffer(b"new")
    attributes = struct.pack("=QII", ctypes.addressof(value), 3, 0)
    call("setxattrat", AT_CWD, place.file, 0, b"user.word", attributes, len(attributes))


def _put_by(way: Way, place: Surroundings) -> None:
    put(way(place, os.O_WRONLY))


def _set_flags(place: Surroundings) -> None:
    descriptor, flags = _read_only(place), bytearray(8)
    fcntl.ioctl(descriptor, _GET_FLAGS, flags)
    fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("=Q", struct.unpack("=Q", flags)[0] | _NODUMP))


def _set_xflags(place: Surroundings) -> None:
    descriptor, attributes = _read_only(place), bytearray(28)
    fcntl.ioctl(descriptor, _GET_XFLAGS, attributes)
    # FS_XFLAG_NODUMP in the first word.
    fcntl.ioctl(descriptor, _SET_XFLAGS, bytes([attributes[0] ^ 0x80]) + bytes(attributes[1:]))


def _by_program(place: Surroundings) -> None:
    subprocess.run(["sh", "-c", f"echo written >> '{place.file}'"], check=True, timeout=5)


def _by_thread(place: Surroundings) -> None:
    thread = threading.Thread(target=lambda: put(opened(place.file, os.O_WRONLY)))
    thread.start()
    thread.join()


def _by_child(place: Surroundings) -> None:
    if os.fork() == 0:
        try:
            call("unlinkat", AT_CWD, place.file, 0)
        finally:
            os._exit(0)
    os.wait()


def _by_ring(place: Surroundings) -> None:
    """Make a folder by io_uring, which no system call filter inspects."""
    parameters = bytearray(120)
    ring = call("io_uring_setup", 1, parameters)
    tail, array = struct.unpack_from("=I", parameters, 44)[0], struct.unpack_from("=I", parameters, 64)[0]
    path = ctypes.create_string_buffer(f"{place.other}/new".encode())
    entry = struct.pack("=BBHiQQI", _MKDIRAT, 0, 0, AT_CWD, 0, ctypes.addressof(path), 0o700)
    with mmap.mmap(ring, 8192, offset=0) as queue, mmap.mmap(ring, 64, offset=0x1000_0000) as entries:
        entries[:] = entry.ljust(64, b"\0")
        struct.pack_into("=I", queue, array, 0)
        struct.pack_into("=I", queue, tail, 1)
        call("io_uring_enter", ring, 1, 1, 1, None, 0)


def _by_old_calls(place: Surroundings) -> None:
    """Make a system call like a 32-bit program, with other numbers."""
    if os.uname().machine != "x86_64":
        raise OSError(38, "only x86_64 has this door")
    page = libc.mmap(None, ctypes.c_size_t(4096), 7, _MAP_PRIVATE_ANONYMOUS_32BIT, -1, ctypes.c_long(0))
    path = page + 64
    # push rbx; mov eax, chmod; mov ebx, path; mov ecx, 0666; int 0x80; pop rbx; ret
    code = b"\x53\xb8" + struct.pack("<I", _I386_CHMOD) + b"\xbb" + struct.pack("<I", path & 0xFFFF_FFFF)
    code += b"\xb9" + struct.pack("<I", 0o666) + b"\xcd\x80\x5b\xc3"
    ctypes.memmove(page, code, len(code))
    name = place.file.encode() + b"\0"
    ctypes.memmove(path, name, len(name))
    ctypes.CFUNCTYPE(ctypes.c_int)(page)()


def _bind_mount(place: Surroundings) -> None:
    target = f"{place.other}/empty".encode()
    raised("mount", libc.mount(place.home.encode(), target, None, ctypes.c_ulong(_MS_BIND), None))


def _move_mount(place: Surroundings, mount: int) -> None:
    call("move_mount", mount, b"", AT_CWD, f"{place.other}/empty", _MOVE_EMPTY_PATH)


def _new_mount(place: Surroundings) -> None:
    context = call("fsopen", b"tmpfs", 0)
    call("fsconfig", context, _CREATE_MOUNT, None, None, 0)
    _move_mount(place, call("fsmount", context, 0, 0))


_ALONE: Rows = {
    "open: open() of Python, to append": _open,
    "create: openat(2) with O_CREAT": lambda p: put(opened(f"{p.other}/new.txt", _NEW, 0o600)),
    "truncating-read: openat(2) with O_RDONLY and O_TRUNC": lambda p: opened(
        p.file, os.O_RDONLY | os.O_TRUNC
    ),
    "truncate": lambda p: os.truncate(p.file, 0),
    "nameless: O_TMPFILE, given a name by linkat(2)": _nameless,
    "mmap: mmap(2), shared and writable": _mapped,
    "unlink": lambda p: os.unlink(p.file),
    "unlinkat: unlinkat(2) from an O_PATH folder": lambda p: call(
        "unlinkat", opened(p.other, os.O_PATH | os.O_DIRECTORY), b"file.txt", 0
    ),
    "rmdir": lambda p: os.rmdir(f"{p.other}/empty"),
    "mkdir": lambda p: os.mkdir(f"{p.other}/new"),
    "rename: rename(2) of another's file": lambda p: os.rename(p.file, f"{p.other}/b"),
    "steal: rename(2) into the own home": lambda p: os.rename(p.file, f"{p.home}/b"),
    "overwrite: rename(2) over another's file": lambda p: os.replace(f"{p.home}/own.txt", p.file),
    "exchange: renameat2(2) with RENAME_EXCHANGE": lambda p: call(
        "renameat2", AT_CWD, f"{p.home}/own.txt", AT_CWD, p.file, _EXCHANGE
    ),
    "link: link(2) into another's home": lambda p: os.link(f"{p.home}/own.txt", f"{p.other}/new.txt"),
    "symlink": lambda p: os.symlink("/etc", f"{p.other}/new"),
    "node: mknodat(2) of a regular file": lambda p: call(
        "mknodat", AT_CWD, f"{p.other}/new.txt", stat.S_IFREG | 0o600, 0
    ),
    "chmod": lambda p: call("chmod", p.file, 0o666),
    "fchmod: fchmod(2) of a file that may be read": lambda p: os.fchmod(_read_only(p), 0o666),
    "fchmodat": lambda p: call("fchmodat", AT_CWD, p.file, 0o666),
    "fchmodat2: fchmodat2(2) of an O_PATH descriptor": lambda p: call(
        "fchmodat2", opened(p.file, os.O_PATH), b"", 0o666, AT_EMPTY_PATH
    ),
    "chown": lambda p: call("chown", p.file, os.getuid(), os.getgid()),
    "lchown": lambda p: call("lchown", f"{p.other}/link", os.getuid(), -1),
    "fchown": lambda p: os.fchown(_read_only(p), os.getuid(), -1),
    "fchownat: fchownat(2) of an O_PATH descriptor": lambda p: call(
        "fchownat", opened(p.file, os.O_PATH), b"", os.getuid(), os.getgid(), AT_EMPTY_PATH
    ),
    "utime": lambda p: call("utime", p.file, struct.pack("=2q", 1, 1)),
    "utimes": lambda p: call("utimes", p.file, _ONE_SECOND),
    "futimesat": lambda p: call("futimesat", AT_CWD, p.file, _ONE_SECOND),
    "utimensat": lambda p: os.utime(p.file, (1, 1)),
    "futimens: utimensat(2) without a name": lambda p: call("utimensat", _read_only(p), None, _ONE_SECOND, 0),
    "setxattr": lambda p: call("setxattr", p.file, b"user.word", b"new", 3, 0),
    "lsetxattr": lambda p: call("lsetxattr", p.file, b"user.word", b"new", 3, 0),
    "fsetxattr: fsetxattr(2) of a file that may be read": lambda p: call(
        "fsetxattr", _read_only(p), b"user.word", b"new", 3, 0
    ),
    "setxattrat": _setxattrat,
    "removexattr": lambda p: call("removexattr", p.file, b"user.word"),
    "lremovexattr": lambda p: call("lremovexattr", p.file, b"user.word"),
    "fremovexattr: fremovexattr(2) of a file that may be read": lambda p: call(
        "fremovexattr", _read_only(p), b"user.word"
    ),
    "removexattrat": lambda p: call("removexattrat", AT_CWD, p.file, 0, b"user.word"),
    "setflags: ioctl(2) FS_IOC_SETFLAGS": _set_flags,
    "setxflags: ioctl(2) FS_IOC_FSSETXATTR": _set_xflags,
    "setversion: ioctl(2) FS_IOC_SETVERSION": lambda p: fcntl.ioctl(
        _read_only(p), _SET_VERSION, struct.pack("=q", 7)
    ),
    "file-setattr: file_setattr(2)": lambda p: call(
        "file_setattr", AT_CWD, p.file, struct.pack("=QIIII", 0x80, 0, 0, 0, 0), 24, 0
    ),
    "by-program: execve(2) of a shell that writes": _by_program,
    "by-thread: a thread that writes": _by_thread,
    "by-child: fork(2), and the child removes": _by_child,
    "by-handle: open_by_handle_at(2)": lambda p: put(opened_by_handle(p.file, p.home, os.O_WRONLY)),
    "by-ring: io_uring(7), mkdirat in a queue": _by_ring,
    "by-old-calls: int 0x80, the system calls of 32-bit programs": _by_old_calls,
    "mount": _bind_mount,
    "new-mount: fsopen(2), fsmount(2), move_mount(2)": _new_mount,
    "cloned-mount: open_tree(2), move_mount(2)": lambda p: _move_mount(
        p, call("open_tree", AT_CWD, p.home, _OPEN_TREE_CLONE)
    ),
    "pipe: mknodat(2) of a FIFO, in the own home": (
        _made_in_home(stat.S_IFIFO),
        lambda p: call("mknodat", AT_CWD, f"{p.home}/pipe", stat.S_IFIFO | 0o666, 0),
    ),
    "device: mknodat(2) of a device, in the own home": (
        _made_in_home(stat.S_IFCHR),
        lambda p: call("mknodat", AT_CWD, f"{p.home}/null", stat.S_IFCHR | 0o666, os.makedev(1, 3)),
    ),
    "socket: bind(2) of a named socket, in the own home": (_made_in_home(stat.S_IFSOCK), _named_socket),
}

_BY_WAYS: Rows = {f"{title}, written": partial(_put_by, way) for title, way in WAYS.items()}

WRITING = rows(AttemptKind.WRITE, lambda world, _seen: world.changed(), {**_ALONE, **_BY_WAYS})
