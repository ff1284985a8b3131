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

from sandbox.selftest.attempt import Act, ActEvidence, Attempt, AttemptKind, Oracle, Surroundings
from sandbox.selftest.calls import call, libc, raised
from sandbox.selftest.world import World

__all__ = ["WRITING"]

_AT_CWD, _AT_EMPTY_PATH, _AT_SYMLINK_FOLLOW = -100, 0x1000, 0x400
_EXCHANGE = 2
_MS_BIND = 4096
_OPEN_TREE_CLONE, _MOVE_EMPTY_PATH, _CREATE_MOUNT = 1, 4, 6
_GET_FLAGS, _SET_FLAGS, _NODUMP = 0x8008_6601, 0x4008_6602, 0x40
_GET_XFLAGS, _SET_XFLAGS, _SET_VERSION = 0x801C_581F, 0x401C_5820, 0x4008_7602
_MKDIRAT = 37
_MAP_PRIVATE_ANONYMOUS_32BIT = 0x62
_I386_CHMOD = 15


def _changed(world: World, _seen: ActEvidence) -> bool:
    return world.changed()


def _made_in_home(kind: int) -> Oracle:
    def oracle(world: World, _seen: ActEvidence) -> bool:
        return any(stat.S_IFMT(path.lstat().st_mode) == kind for path in world.home.iterdir())

    return oracle


def _file(place: Surroundings) -> bytes:
    return f"{place.other}/file.txt".encode()


def _read_only(path: str) -> int:
    return os.open(path, os.O_RDONLY)


def _written(descriptor: int) -> None:
    os.write(descriptor, b"written")
    os.close(descriptor)


def _open(place: Surroundings) -> None:
    with open(f"{place.other}/file.txt", "a") as file:
        file.write("written")


def _create(place: Surroundings) -> None:
    new = f"{place.other}/new.txt".encode()
    _written(call("openat", _AT_CWD, new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def _openat2(place: Surroundings) -> None:
    _written(call("openat2", _AT_CWD, _file(place), struct.pack("=QQQ", os.O_WRONLY, 0, 0), 24))


def _truncating_read(place: Surroundings) -> None:
    os.close(call("openat", _AT_CWD, _file(place), os.O_RDONLY | os.O_TRUNC, 0))


def _nameless(place: Surroundings) -> None:
    descriptor = call("openat", _AT_CWD, place.other.encode(), os.O_TMPFILE | os.O_WRONLY, 0o600)
    source, target = f"/proc/self/fd/{descriptor}".encode(), f"{place.other}/new.txt".encode()
    call("linkat", _AT_CWD, source, _AT_CWD, target, _AT_SYMLINK_FOLLOW)


def _linkat(place: Surroundings) -> None:
    os.link(f"{place.home}/own.txt", f"{place.other}/new.txt")


def _mapped(place: Surroundings) -> None:
    descriptor = call("openat", _AT_CWD, _file(place), os.O_RDWR, 0)
    with mmap.mmap(descriptor, 0) as memory:
        memory[:3] = b"new"
    os.close(descriptor)


def _unlinkat(place: Surroundings) -> None:
    folder = call("openat", _AT_CWD, place.other.encode(), os.O_PATH | os.O_DIRECTORY, 0)
    call("unlinkat", folder, b"file.txt", 0)


def _exchange(place: Surroundings) -> None:
    own = f"{place.home}/own.txt".encode()
    call("renameat2", _AT_CWD, own, _AT_CWD, _file(place), _EXCHANGE)


def _regular_node(place: Surroundings) -> None:
    call("mknodat", _AT_CWD, f"{place.other}/new.txt".encode(), stat.S_IFREG | 0o600, 0)


def _pipe(place: Surroundings) -> None:
    call("mknodat", _AT_CWD, f"{place.home}/pipe".encode(), stat.S_IFIFO | 0o666, 0)


def _device(place: Surroundings) -> None:
    call("mknodat", _AT_CWD, f"{place.home}/null".encode(), stat.S_IFCHR | 0o666, os.makedev(1, 3))


def _named_socket(place: Surroundings) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{place.home}/socket")


def _fchmod(place: Surroundings) -> None:
    os.fchmod(_read_only(place.readable), 0o666)


def _fchmodat2(place: Surroundings) -> None:
    handle = call("openat", _AT_CWD, _file(place), os.O_PATH, 0)
    call("fchmodat2", handle, b"", 0o666, _AT_EMPTY_PATH)


def _fchownat(place: Surroundings) -> None:
    handle = call("openat", _AT_CWD, _file(place), os.O_PATH, 0)
    call("fchownat", handle, b"", os.getuid(), os.getgid(), _AT_EMPTY_PATH)


def _times_by_descriptor(place: Surroundings) -> None:
    call("utimensat", _read_only(place.readable), None, struct.pack("=4q", 1, 0, 1, 0), 0)


def _set_attribute(name: str) -> Act:
    return lambda place: call(name, _file(place), b"user.word", b"new", 3, 0)


def _fsetxattr(place: Surroundings) -> None:
    call("fsetxattr", _read_only(place.readable), b"user.word", b"new", 3, 0)


def _setxattrat(place: Surroundings) -> None:
    value = ctypes.create_string_buffer(b"new")
    attributes = struct.pack("=QII", ctypes.addressof(value), 3, 0)
    call("setxattrat", _AT_CWD, _file(place), 0, b"user.word", attributes, len(attributes))


def _remove_attribute(name: str) -> Act:
    return lambda place: call(name, _file(place), b"user.word")


def _removexattrat(place: Surroundings) -> None:
    call("removexattrat", _AT_CWD, _file(place), 0, b"user.word")


def _fremovexattr(place: Surroundings) -> None:
    call("fremovexattr", _read_only(place.readable), b"user.word")


def _set_flags(place: Surroundings) -> None:
    descriptor, flags = _read_only(place.readable), bytearray(8)
    fcntl.ioctl(descriptor, _GET_FLAGS, flags)
    fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("=Q", struct.unpack("=Q", flags)[0] | _NODUMP))


def _set_xflags(place: Surroundings) -> None:
    descriptor, attributes = _read_only(place.readable), bytearray(28)
    fcntl.ioctl(descriptor, _GET_XFLAGS, attributes)
    # FS_XFLAG_NODUMP in the first of its words.
    fcntl.ioctl(descriptor, _SET_XFLAGS, bytes([attributes[0] ^ 0x80]) + bytes(attributes[1:]))


def _set_version(place: Surroundings) -> None:
    fcntl.ioctl(_read_only(place.readable), _SET_VERSION, struct.pack("=q", 7))


def _file_setattr(place: Surroundings) -> None:
    call("file_setattr", _AT_CWD, _file(place), struct.pack("=QIIII", 0x80, 0, 0, 0, 0), 24, 0)


def _through_link(place: Surroundings) -> None:
    os.symlink(f"{place.other}/file.txt", f"{place.home}/way")
    _written(os.open(f"{place.home}/way", os.O_WRONLY))


def _through_root(place: Surroundings) -> None:
    _written(call("openat", _AT_CWD, b"/proc/self/root" + _file(place), os.O_WRONLY, 0))


def _through_folder(place: Surroundings) -> None:
    os.chdir(place.other)
    _written(call("openat", _AT_CWD, b"file.txt", os.O_WRONLY, 0))


def _through_descriptor(place: Surroundings) -> None:
    handle = call("openat", _AT_CWD, _file(place), os.O_PATH, 0)
    _written(call("openat", _AT_CWD, f"/proc/self/fd/{handle}".encode(), os.O_WRONLY, 0))


def _by_program(place: Surroundings) -> None:
    subprocess.run(["sh", "-c", f"echo written >> '{place.other}/file.txt'"], check=True, timeout=5)


def _by_thread(place: Surroundings) -> None:
    thread = threading.Thread(target=lambda: _written(call("openat", _AT_CWD, _file(place), os.O_WRONLY, 0)))
    thread.start()
    thread.join()


def _by_child(place: Surroundings) -> None:
    if os.fork() == 0:
        try:
            call("unlinkat", _AT_CWD, _file(place), 0)
        finally:
            os._exit(0)
    os.wait()


def _by_handle(place: Surroundings) -> None:
    handle, mount = bytearray(struct.pack("=Ii", 128, 0) + bytes(128)), bytearray(4)
    call("name_to_handle_at", _AT_CWD, _file(place), handle, mount, 0)
    _written(call("open_by_handle_at", os.open(place.home, os.O_RDONLY), handle, os.O_WRONLY))


def _by_ring(place: Surroundings) -> None:
    """Have the kernel make a folder, by a queue that no filter of system calls looks into."""
    parameters = bytearray(120)
    ring = call("io_uring_setup", 1, parameters)
    tail, array = struct.unpack_from("=I", parameters, 44)[0], struct.unpack_from("=I", parameters, 64)[0]
    path = ctypes.create_string_buffer(f"{place.other}/new".encode())
    with mmap.mmap(ring, 8192, offset=0) as queue, mmap.mmap(ring, 64, offset=0x1000_0000) as entries:
        entries[:] = struct.pack("=BBHiQQI", _MKDIRAT, 0, 0, _AT_CWD, 0, ctypes.addressof(path), 0o700).ljust(
            64, b"\0"
        )
        struct.pack_into("=I", queue, array, 0)
        struct.pack_into("=I", queue, tail, 1)
        call("io_uring_enter", ring, 1, 1, 1, None, 0)


def _bind_mount(place: Surroundings) -> None:
    target = f"{place.other}/empty".encode()
    raised("mount", libc.mount(place.home.encode(), target, None, ctypes.c_ulong(_MS_BIND), None))


def _new_mount(place: Surroundings) -> None:
    context = call("fsopen", b"tmpfs", 0)
    call("fsconfig", context, _CREATE_MOUNT, None, None, 0)
    mount = call("fsmount", context, 0, 0)
    call("move_mount", mount, b"", _AT_CWD, f"{place.other}/empty".encode(), _MOVE_EMPTY_PATH)


def _cloned_mount(place: Surroundings) -> None:
    tree = call("open_tree", _AT_CWD, place.home.encode(), _OPEN_TREE_CLONE)
    call("move_mount", tree, b"", _AT_CWD, f"{place.other}/empty".encode(), _MOVE_EMPTY_PATH)


def _by_old_calls(place: Surroundings) -> None:
    """Ask as a 32-bit program does: through another door, with other numbers."""
    if os.uname().machine != "x86_64":
        raise OSError(38, "only x86_64 has this door")
    page = libc.mmap(None, ctypes.c_size_t(4096), 7, _MAP_PRIVATE_ANONYMOUS_32BIT, -1, ctypes.c_long(0))
    path = page + 64
    # push rbx; mov eax, chmod; mov ebx, path; mov ecx, 0666; int 0x80; pop rbx; ret
    code = b"\x53\xb8" + struct.pack("<I", _I386_CHMOD) + b"\xbb" + struct.pack("<I", path & 0xFFFF_FFFF)
    code += b"\xb9" + struct.pack("<I", 0o666) + b"\xcd\x80\x5b\xc3"
    ctypes.memmove(page, code, len(code))
    name = _file(place) + b"\0"
    ctypes.memmove(path, name, len(name))
    ctypes.CFUNCTYPE(ctypes.c_int)(page)()


def _write(name: str, technique: str, act: Act, escaped: Oracle = _changed) -> Attempt:
    return Attempt(id=f"write-{name}", kind=AttemptKind.WRITE, technique=technique, act=act, escaped=escaped)


WRITING = (
    _write("open", "open() of Python, to append", _open),
    _write("create", "openat(2) with O_CREAT", _create),
    _write("openat2", "openat2(2)", _openat2),
    _write("truncating-read", "openat(2) with O_RDONLY and O_TRUNC", _truncating_read),
    _write("truncate", "truncate(2)", lambda p: os.truncate(f"{p.other}/file.txt", 0)),
    _write("nameless", "O_TMPFILE, given a name by linkat(2)", _nameless),
    _write("mmap", "mmap(2), shared and writable", _mapped),
    _write("unlink", "unlink(2)", lambda p: os.unlink(f"{p.other}/file.txt")),
    _write("unlinkat", "unlinkat(2) from an O_PATH folder", _unlinkat),
    _write("rmdir", "rmdir(2)", lambda p: os.rmdir(f"{p.other}/empty")),
    _write("mkdir", "mkdir(2)", lambda p: os.mkdir(f"{p.other}/new")),
    _write("rename", "rename(2) of another's file", lambda p: os.rename(_file(p), f"{p.other}/b".encode())),
    _write("steal", "rename(2) into the own home", lambda p: os.rename(_file(p), f"{p.home}/b".encode())),
    _write("overwrite", "rename(2) over another's file", lambda p: os.replace(f"{p.home}/own.txt", _file(p))),
    _write("exchange", "renameat2(2) with RENAME_EXCHANGE", _exchange),
    _write("link", "link(2) into another's home", _linkat),
    _write("symlink", "symlink(2)", lambda p: os.symlink("/etc", f"{p.other}/new")),
    _write("node", "mknodat(2) of a regular file", _regular_node),
    _write("pipe", "mknodat(2) of a FIFO, in the own home", _pipe, _made_in_home(stat.S_IFIFO)),
    _write("device", "mknodat(2) of a device, in the own home", _device, _made_in_home(stat.S_IFCHR)),
    _write(
        "socket", "bind(2) of a named socket, in the own home", _named_socket, _made_in_home(stat.S_IFSOCK)
    ),
    _write("chmod", "chmod(2)", lambda p: call("chmod", _file(p), 0o666)),
    _write("fchmod", "fchmod(2) of a file that may be read", _fchmod),
    _write("fchmodat", "fchmodat(2)", lambda p: call("fchmodat", _AT_CWD, _file(p), 0o666)),
    _write("fchmodat2", "fchmodat2(2) of an O_PATH descriptor", _fchmodat2),
    _write("chown", "chown(2)", lambda p: call("chown", _file(p), os.getuid(), os.getgid())),
    _write("lchown", "lchown(2)", lambda p: call("lchown", f"{p.other}/link".encode(), os.getuid(), -1)),
    _write("fchown", "fchown(2)", lambda p: os.fchown(_read_only(p.readable), os.getuid(), -1)),
    _write("fchownat", "fchownat(2) of an O_PATH descriptor", _fchownat),
    _write("utime", "utime(2)", lambda p: call("utime", _file(p), struct.pack("=2q", 1, 1))),
    _write("utimes", "utimes(2)", lambda p: call("utimes", _file(p), struct.pack("=4q", 1, 0, 1, 0))),
    _write(
        "futimesat",
        "futimesat(2)",
        lambda p: call("futimesat", _AT_CWD, _file(p), struct.pack("=4q", 1, 0, 1, 0)),
    ),
    _write("utimensat", "utimensat(2)", lambda p: os.utime(_file(p), (1, 1))),
    _write("futimens", "utimensat(2) without a name", _times_by_descriptor),
    _write("setxattr", "setxattr(2)", _set_attribute("setxattr")),
    _write("lsetxattr", "lsetxattr(2)", _set_attribute("lsetxattr")),
    _write("fsetxattr", "fsetxattr(2) of a file that may be read", _fsetxattr),
    _write("setxattrat", "setxattrat(2)", _setxattrat),
    _write("removexattr", "removexattr(2)", _remove_attribute("removexattr")),
    _write("lremovexattr", "lremovexattr(2)", _remove_attribute("lremovexattr")),
    _write("fremovexattr", "fremovexattr(2) of a file that may be read", _fremovexattr),
    _write("removexattrat", "removexattrat(2)", _removexattrat),
    _write("setflags", "ioctl(2) FS_IOC_SETFLAGS", _set_flags),
    _write("setxflags", "ioctl(2) FS_IOC_FSSETXATTR", _set_xflags),
    _write("setversion", "ioctl(2) FS_IOC_SETVERSION", _set_version),
    _write("file-setattr", "file_setattr(2)", _file_setattr),
    _write("through-link", "a symbolic link in the own home", _through_link),
    _write("through-root", "the magic link /proc/self/root", _through_root),
    _write("through-folder", "chdir(2), then a relative path", _through_folder),
    _write("through-descriptor", "an O_PATH descriptor opened again by /proc/self/fd", _through_descriptor),
    _write("by-program", "execve(2) of a shell that writes", _by_program),
    _write("by-thread", "a thread that writes", _by_thread),
    _write("by-child", "fork(2), and the child removes", _by_child),
    _write("by-handle", "open_by_handle_at(2)", _by_handle),
    _write("by-ring", "io_uring(7), mkdirat in a queue", _by_ring),
    _write("by-old-calls", "int 0x80, the system calls of 32-bit programs", _by_old_calls),
    _write("mount", "mount(2)", _bind_mount),
    _write("new-mount", "fsopen(2), fsmount(2), move_mount(2)", _new_mount),
    _write("cloned-mount", "open_tree(2), move_mount(2)", _cloned_mount),
)
