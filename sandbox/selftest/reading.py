"""Attempts of kind `other user`: learn what another user, the runner or another process keeps to itself.

Source: open(2), proc(5), process_vm_readv(2), ptrace(2), pidfd_getfd(2), sysvipc(7), mq_overview(7),
keyctl(2), inotify(7), fanotify(7), sock_diag(7), stat(2), flock(2).
"""

import ctypes
import fcntl
import os
import select
import socket
import struct
import subprocess
from pathlib import Path

from sandbox.selftest.attempt import (
    Act,
    ActEvidence,
    Attempt,
    AttemptKind,
    AttemptNeed,
    Oracle,
    Residue,
    Surroundings,
    told,
)
from sandbox.selftest.calls import call, libc, raised
from sandbox.selftest.planted import USER_KEYRING, number_of
from sandbox.selftest.secret import SECRET_WORD
from sandbox.selftest.world import World

__all__ = ["READING"]

_AT_CWD, _AT_EMPTY_PATH = -100, 0x1000
_SHM_RDONLY, _IPC_NOWAIT, _GETVAL = 0o10000, 0o4000, 12
_KEY_READ = 11
_PTRACE_SEIZE, _PTRACE_INTERRUPT, _PTRACE_PEEK = 0x4206, 0x4207, 2
_IN_CREATE, _FAN_CREATE = 0x100, 0x100
_FAN_REPORT_NAMES, _FAN_MARK_ADD_FOLDER = 0x0C00, 0x01 | 0x08
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, _SHOW_NAME = 4, 20, 0x301, 1
_BYTES = 8192


def _told_of_ground(world: World, seen: ActEvidence) -> bool:
    return world.ground.word in seen.text


def _told_number(world: World, seen: ActEvidence) -> bool:
    return seen.claim == number_of(world.canary)


def _told_pid(world: World, seen: ActEvidence) -> bool:
    return isinstance(seen.claim, list) and str(world.stranger.pid) in seen.claim


def _told_metadata(world: World, seen: ActEvidence) -> bool:
    facts = os.lstat(f"{world.other}/file.txt")
    return seen.claim == [facts.st_ino, facts.st_size, facts.st_mtime_ns]


def _told_metadata_elsewhere(world: World, seen: ActEvidence) -> bool:
    facts = os.lstat(f"{world.place.state}/key")
    return seen.claim == [facts.st_ino, facts.st_size, facts.st_mtime_ns]


def _told_existence(_world: World, seen: ActEvidence) -> bool:
    return seen.claim == [True, False]


def _locked(_world: World, seen: ActEvidence) -> bool:
    return seen.during is True


def _try_lock(world: World, _pid: int) -> bool:
    """Say whether somebody else holds a lock on the file that may be read."""
    with open(world.place.readable) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _try_record_lock(world: World, _pid: int) -> bool:
    with open(world.place.readable, "a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _leased(world: World, pid: int) -> bool:
    inode = os.stat(world.place.readable).st_ino
    locks = Path("/proc/locks").read_text().splitlines()
    return any("LEASE" in line and f" {pid} " in line and f":{inode} " in line for line in locks)


def _told_ipc(world: World, seen: ActEvidence) -> bool:
    return isinstance(seen.claim, list) and Path(world.place.shared).name in seen.claim


def _touch_in_other(world: World, _pid: int) -> None:
    (world.other / f"new-{world.canary}").touch()


def _file(place: Surroundings) -> bytes:
    return f"{place.other}/file.txt".encode()


def _all(descriptor: int) -> str:
    try:
        return os.read(descriptor, _BYTES).decode(errors="replace")
    finally:
        os.close(descriptor)


def _every(path: str) -> str:
    """Read a file of /proc, however many pieces it comes in; only the lines that could matter."""
    with open(path, errors="replace") as file:
        return "".join(line for line in file if "hidden-" in line)


def _raw(path: str) -> str:
    return _all(call("openat", _AT_CWD, path.encode(), os.O_RDONLY, 0))


def _openat2(place: Surroundings) -> str:
    return _all(call("openat2", _AT_CWD, _file(place), struct.pack("=QQQ", os.O_RDONLY, 0, 0), 24))


def _getdents(place: Surroundings) -> list[str]:
    libc.opendir.restype = ctypes.c_void_p
    libc.readdir.restype = ctypes.c_void_p
    stream = libc.opendir(place.other.encode())
    if stream is None:
        raised("opendir", -1)
    names = []
    while entry := libc.readdir(ctypes.c_void_p(stream)):
        # d_name stands behind two 64-bit words, a 16-bit one and a byte.
        names.append(ctypes.string_at(entry + 19).decode())
    return names


def _through_link(place: Surroundings) -> str:
    os.symlink(f"{place.other}/file.txt", f"{place.home}/way")
    return _raw(f"{place.home}/way")


def _through_hard_link(place: Surroundings) -> str:
    call("linkat", _AT_CWD, _file(place), _AT_CWD, f"{place.home}/way".encode(), 0)
    return _raw(f"{place.home}/way")


def _through_handle(place: Surroundings) -> str:
    handle, mount = bytearray(struct.pack("=Ii", 128, 0) + bytes(128)), bytearray(4)
    call("name_to_handle_at", _AT_CWD, _file(place), handle, mount, 0)
    return _all(call("open_by_handle_at", os.open(place.home, os.O_RDONLY), handle, os.O_RDONLY))


def _through_descriptor(place: Surroundings) -> str:
    handle = call("openat", _AT_CWD, _file(place), os.O_PATH, 0)
    return _raw(f"/proc/self/fd/{handle}")


def _through_folder(place: Surroundings) -> str:
    os.chdir(place.other)
    return _raw("file.txt")


def _by_program(place: Surroundings) -> str:
    return subprocess.run(["cat", _file(place)], check=True, capture_output=True, timeout=5).stdout.decode()


def _run_it(place: Surroundings) -> str:
    return subprocess.run([f"{place.other}/prog"], check=True, capture_output=True, timeout=5).stdout.decode()


def _run_it_from_folder(place: Surroundings) -> str:
    read, write = os.pipe()
    if os.fork() == 0:
        os.dup2(write, 1)
        arguments = (ctypes.c_char_p * 2)(b"prog", None)
        folder = libc.open(place.other.encode(), os.O_PATH)
        libc.execveat(folder, b"prog", arguments, (ctypes.c_char_p * 1)(None), 0)
        os._exit(1)
    os.close(write)
    return _all(read)


def _memory_file(place: Surroundings) -> str:
    descriptor = call("openat", _AT_CWD, f"/proc/{place.victim}/mem".encode(), os.O_RDONLY, 0)
    return os.pread(descriptor, place.length, place.address).decode()


def _vm_readv(place: Surroundings) -> str:
    buffer = ctypes.create_string_buffer(place.length)
    ours = struct.pack("=QQ", ctypes.addressof(buffer), place.length)
    call("process_vm_readv", place.victim, ours, 1, struct.pack("=QQ", place.address, place.length), 1, 0)
    return buffer.raw.decode()


def _peeked(place: Surroundings) -> str:
    call("ptrace", _PTRACE_SEIZE, place.victim, None, None)
    call("ptrace", _PTRACE_INTERRUPT, place.victim, None, None)
    os.waitpid(place.victim, 0x4000_0000)
    words = []
    for offset in range(0, place.length, 8):
        word = ctypes.c_long()
        call("ptrace", _PTRACE_PEEK, place.victim, place.address + offset, ctypes.addressof(word))
        words.append(struct.pack("=q", word.value))
    return b"".join(words)[: place.length].decode(errors="replace")


def _taken_descriptor(place: Surroundings) -> str:
    taken = call("pidfd_getfd", os.pidfd_open(place.victim), place.descriptor, 0)
    return os.pread(taken, _BYTES, 0).decode()


def _shared_segment(place: Surroundings) -> str:
    at = libc.shmat(place.segment, None, _SHM_RDONLY)
    if at is None or at == ctypes.c_void_p(-1).value:
        raised("shmat", -1)
    return ctypes.string_at(at, place.length).decode()


def _taken_message(place: Surroundings) -> str:
    buffer = ctypes.create_string_buffer(_BYTES)
    length = call("msgrcv", place.messages, buffer, _BYTES - 8, 0, _IPC_NOWAIT)
    return buffer.raw[8 : 8 + length].decode()


def _queued_message(place: Surroundings) -> str:
    queue = call("mq_open", place.queue.encode(), os.O_RDONLY | os.O_NONBLOCK, 0, None)
    buffer = ctypes.create_string_buffer(_BYTES)
    length = call("mq_timedreceive", queue, buffer, _BYTES, None, None)
    return buffer.raw[:length].decode()


def _key(place: Surroundings) -> str:
    buffer = ctypes.create_string_buffer(_BYTES)
    length = call("keyctl", _KEY_READ, place.key, buffer, _BYTES)
    return buffer.raw[:length].decode()


def _listed_keys(_place: Surroundings) -> str:
    """Learn which keys there are, by the numbers that the keyring holds, and what each is called."""
    buffer = ctypes.create_string_buffer(_BYTES)
    length = call("keyctl", _KEY_READ, USER_KEYRING, buffer, _BYTES)
    return " ".join(str(number) for number in struct.unpack(f"={length // 4}i", buffer.raw[:length]))


def _told_key(world: World, seen: ActEvidence) -> bool:
    return str(world.place.key) in seen.text.split()


def _watched(place: Surroundings) -> str:
    watch = call("inotify_init1", os.O_NONBLOCK)
    call("inotify_add_watch", watch, place.other.encode(), _IN_CREATE)
    place.hold()
    return _all(watch)


def _watched_widely(place: Surroundings) -> str:
    watch = call("fanotify_init", _FAN_REPORT_NAMES | os.O_NONBLOCK, 0)
    call("fanotify_mark", watch, _FAN_MARK_ADD_FOLDER, _FAN_CREATE, _AT_CWD, place.other.encode())
    place.hold()
    return _all(watch)


def _asked_kernel(_place: Surroundings) -> str:
    """Ask the kernel's socket directory for the names of all UNIX sockets."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as netlink:
        body = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFF_FFFF, 0, _SHOW_NAME, 0, 0)
        header = struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0)
        netlink.send(header + body)
        found = b""
        while select.select([netlink], [], [], 0.2)[0]:
            found += netlink.recv(1 << 16)
        return found.decode(errors="replace")


def _inherited(_place: Surroundings) -> list[str]:
    found = []
    for descriptor in range(3, 64):
        try:
            found.append(os.pread(descriptor, _BYTES, 0).decode(errors="replace"))
        except OSError:
            continue
    return found


def _environment(_place: Surroundings) -> str:
    libc.getenv.restype = ctypes.c_char_p
    return str(libc.getenv(SECRET_WORD.encode()))


def _stat(path: str) -> list[int]:
    facts = os.lstat(path)
    return [facts.st_ino, facts.st_size, facts.st_mtime_ns]


def _statx(place: Surroundings) -> list[int]:
    buffer = ctypes.create_string_buffer(256)
    call("statx", _AT_CWD, f"{place.state}/key".encode(), 0x100, 0xFFF, buffer)
    size, seconds, nanoseconds = struct.unpack_from("=Q", buffer, 40) + struct.unpack_from("=qI", buffer, 112)
    return [struct.unpack_from("=Q", buffer, 32)[0], size, seconds * 1_000_000_000 + nanoseconds]


def _access(place: Surroundings) -> list[bool]:
    return [os.access(f"{place.other}/{name}", os.F_OK) for name in ("file.txt", "nothing")]


def _attribute(place: Surroundings) -> str:
    buffer = ctypes.create_string_buffer(_BYTES)
    length = call("getxattr", _file(place), b"user.word", buffer, _BYTES)
    return buffer.raw[:length].decode()


def _lock(place: Surroundings) -> None:
    with open(place.readable) as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        place.hold()


def _record_lock(place: Surroundings) -> None:
    with open(place.readable) as file:
        fcntl.lockf(file, fcntl.LOCK_SH)
        place.hold()


def _lease(place: Surroundings) -> None:
    with open(place.readable) as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        place.hold()


def _of(place: Surroundings, name: str) -> str:
    return f"/proc/{place.victim}/{name}"


def _read(
    name: str,
    technique: str,
    act: Act,
    *needs: AttemptNeed,
    escaped: Oracle = told,
    residue: Residue | None = None,
) -> Attempt:
    return Attempt(
        id=f"other-{name}",
        kind=AttemptKind.OTHER_USER,
        technique=technique,
        act=act,
        escaped=escaped,
        needs=needs,
        residue=residue,
        during=_DURING.get(name),
    )


_DURING = {
    "inotify": _touch_in_other,
    "fanotify": _touch_in_other,
    "flock": _try_lock,
    "record-lock": _try_record_lock,
    "lease": _leased,
}

READING = (
    _read("open", "open() of Python, to read", lambda p: Path(f"{p.state}/key").read_text()),
    _read("openat", "openat(2) to read, past Python", lambda p: _raw(f"{p.other}/file.txt")),
    _read("openat2", "openat2(2) to read", _openat2),
    _read("list", "os.listdir() of another home", lambda p: os.listdir(p.other)),
    _read("getdents", "opendir(3), getdents64(2)", _getdents),
    _read("names", "the list of all homes", lambda p: os.listdir(p.homes)),
    _read("through-link", "a symbolic link to another's file, read", _through_link),
    _read("through-hard-link", "link(2) to another's file, read", _through_hard_link),
    _read("through-handle", "name_to_handle_at(2), open_by_handle_at(2)", _through_handle),
    _read("through-descriptor", "an O_PATH descriptor opened again, read", _through_descriptor),
    _read("through-folder", "chdir(2) into another home, read", _through_folder),
    _read("through-root", "/proc/self/root, read", lambda p: _raw(f"/proc/self/root{p.other}/file.txt")),
    _read("by-program", "execve(2) of a program that reads", _by_program),
    _read("run", "execve(2) of another's program", _run_it),
    _read("execveat", "execveat(2) of another's program", _run_it_from_folder),
    _read("environ", "/proc/PID/environ", lambda p: _raw(_of(p, "environ")), AttemptNeed.VICTIM),
    _read("cmdline", "/proc/PID/cmdline", lambda p: _raw(_of(p, "cmdline")), AttemptNeed.VICTIM),
    _read("mem", "/proc/PID/mem, read", _memory_file, AttemptNeed.VICTIM),
    _read("fd", "/proc/PID/fd", lambda p: _raw(_of(p, f"fd/{p.descriptor}")), AttemptNeed.VICTIM),
    _read("cwd", "/proc/PID/cwd", lambda p: _raw(_of(p, "cwd/file.txt")), AttemptNeed.VICTIM),
    _read(
        "task",
        "/proc/PID/task/TID/environ",
        lambda p: _raw(_of(p, f"task/{p.victim}/environ")),
        AttemptNeed.VICTIM,
    ),
    _read(
        "processes",
        "the list of processes",
        lambda _: os.listdir("/proc"),
        AttemptNeed.VICTIM,
        escaped=_told_pid,
    ),
    _read("vm-readv", "process_vm_readv(2)", _vm_readv, AttemptNeed.VICTIM),
    _read("ptrace", "ptrace(2), PTRACE_PEEKDATA", _peeked, AttemptNeed.VICTIM),
    _read("pidfd-getfd", "pidfd_getfd(2)", _taken_descriptor, AttemptNeed.VICTIM),
    _read("shmat", "shmat(2) of another's segment", _shared_segment, AttemptNeed.IPC),
    _read("msgrcv", "msgrcv(2) from another's queue", _taken_message, AttemptNeed.IPC),
    _read(
        "semctl",
        "semctl(2), GETVAL",
        lambda p: raised("semctl", libc.semctl(p.semaphores, 0, _GETVAL)),
        AttemptNeed.IPC,
        escaped=_told_number,
    ),
    _read("mq-receive", "mq_timedreceive(2) from another's queue", _queued_message, AttemptNeed.IPC),
    _read("shm-open", "shm_open(3), read", lambda p: _raw(p.shared), AttemptNeed.IPC),
    _read(
        "shm-list",
        "the list of all POSIX shared memory",
        lambda p: os.listdir(Path(p.shared).parent),
        AttemptNeed.IPC,
        escaped=_told_ipc,
    ),
    _read("key", "keyctl(2), KEYCTL_READ of a key", _key, AttemptNeed.KEY),
    _read(
        "keyring",
        "keyctl(2), the keys of the user's keyring",
        _listed_keys,
        AttemptNeed.KEY,
        escaped=_told_key,
    ),
    _read("inotify", "inotify(7) on another home", _watched),
    _read("fanotify", "fanotify(7) on another home", _watched_widely),
    _read("unix-names", "/proc/net/unix", lambda _: _every("/proc/net/unix"), AttemptNeed.SOCKETS),
    _read("sock-diag", "netlink(7), NETLINK_SOCK_DIAG", _asked_kernel, AttemptNeed.SOCKETS),
    _read("inherited", "a descriptor inherited by accident", _inherited, escaped=_told_of_ground),
    _read("environment", "a variable of the host's environment", _environment, escaped=_told_of_ground),
    _read(
        "stat",
        "lstat(2) of a known name in another home",
        lambda p: _stat(f"{p.other}/file.txt"),
        escaped=_told_metadata,
        residue=Residue.HOMES,
    ),
    _read(
        "access",
        "access(2): whether a name exists in another home",
        _access,
        escaped=_told_existence,
        residue=Residue.HOMES,
    ),
    _read(
        "readlink",
        "readlink(2) of a known link in another home",
        lambda p: os.readlink(f"{p.other}/link"),
        residue=Residue.HOMES,
    ),
    _read("getxattr", "getxattr(2) of a known name in another home", _attribute),
    _read(
        "statx",
        "statx(2) of a file of the runner",
        _statx,
        escaped=_told_metadata_elsewhere,
        residue=Residue.ELSEWHERE,
    ),
    _read("flock", "flock(2) on a readable file", _lock, escaped=_locked, residue=Residue.LOCKS),
    _read(
        "record-lock",
        "fcntl(2) F_SETLK on a readable file",
        _record_lock,
        escaped=_locked,
        residue=Residue.LOCKS,
    ),
    _read("lease", "fcntl(2) F_SETLEASE on a readable file", _lease, escaped=_locked),
)
