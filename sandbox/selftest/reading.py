"""Attempts of kind `other user`: read data of another user, the runner or another process.

Source: open(2), proc(5), process_vm_readv(2), ptrace(2), pidfd_getfd(2), sysvipc(7), mq_overview(7),
keyctl(2), inotify(7), fanotify(7), sock_diag(7), stat(2), flock(2), clock_getcpuclockid(3).
"""

import ctypes
import fcntl
import os
import select
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sandbox.selftest.attempt import (
    SECRET_WORD,
    WORD_DIGITS,
    ActEvidence,
    AttemptKind,
    Oracle,
    Residue,
    Rows,
    Surroundings,
    rows,
    shows_word,
)
from sandbox.selftest.calls import (
    AT_CWD,
    WAYS,
    Way,
    attached,
    call,
    filled,
    libc,
    opened,
    opened_by_handle,
    raw,
    seize,
    taken,
    transferred,
)
from sandbox.selftest.kernel_objects import number_of
from sandbox.selftest.measuring import found_by
from sandbox.selftest.world import World

__all__ = ["READING"]

_SHM_RDONLY, _IPC_NOWAIT, _GETVAL = 0o10000, 0o4000, 12
_KEY_READ, _USER_KEYRING = 11, -4
_PTRACE_PEEK, _CPUCLOCK_SCHED = 2, 2
_IN_CREATE, _FAN_CREATE = 0x100, 0x100
_FAN_REPORT_NAMES, _FAN_MARK_ADD_FOLDER = 0x0C00, 0x01 | 0x08
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, _SHOW_NAME = 4, 20, 0x301, 1
_BYTES = 8192


def _shows_ground_word(world: World, seen: ActEvidence) -> bool:
    return world.ground.word in seen.text


def _listed(name: Callable[[World], object]) -> Oracle:
    """Return an oracle: the act returned a list that contains a name."""
    return lambda world, seen: isinstance(seen.claim, list) and str(name(world)) in seen.claim


def _shows_metadata(world: World, seen: ActEvidence) -> bool:
    return seen.claim in (_stat(world.place.file), _stat(f"{world.place.state}/key"))


def _clock_of(pid: int) -> int:
    """Return the id of the CPU-time clock of a process."""
    return ~pid << 3 | _CPUCLOCK_SCHED


def _stat(path: str) -> list[int]:
    facts = os.lstat(path)
    return [facts.st_ino, facts.st_size, facts.st_mtime_ns]


def _lock_denied(lock: Callable[[int, int], object], world: World, _pid: int) -> bool:
    """Return whether another process holds a lock on the readable file."""
    with open(world.place.readable, "a") as file:
        try:
            lock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _leased(world: World, pid: int) -> bool:
    inode = os.stat(world.place.readable).st_ino
    locks = Path("/proc/locks").read_text().splitlines()
    return any("LEASE" in line and f" {pid} " in line and f":{inode} " in line for line in locks)


def _touch_in_other(world: World, _pid: int) -> None:
    (world.other / f"new-{world.canary}").touch()


def _taken_by(way: Way, place: Surroundings) -> str:
    return taken(way(place, os.O_RDONLY))


def _through_hard_link(place: Surroundings) -> str:
    call("linkat", AT_CWD, place.file, AT_CWD, f"{place.home}/way", 0)
    return raw(f"{place.home}/way")


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, timeout=5).stdout.decode()


def _run_it_from_folder(place: Surroundings) -> str:
    read, write = os.pipe()
    if os.fork() == 0:
        os.dup2(write, 1)
        arguments = (ctypes.c_char_p * 2)(b"prog", None)
        folder = libc.open(place.other.encode(), os.O_PATH)
        libc.execveat(folder, b"prog", arguments, (ctypes.c_char_p * 1)(None), 0)
        os._exit(1)
    os.close(write)
    return taken(read)


def _peeked(place: Surroundings) -> str:
    seize(place.victim)
    words = []
    for offset in range(0, WORD_DIGITS, 8):
        word = ctypes.c_long()
        call("ptrace", _PTRACE_PEEK, place.victim, place.address + offset, ctypes.addressof(word))
        words.append(struct.pack("=q", word.value))
    return b"".join(words)[:WORD_DIGITS].decode(errors="replace")


def _queued_message(place: Surroundings) -> str:
    queue = call("mq_open", place.queue, os.O_RDONLY | os.O_NONBLOCK, 0, None)
    return filled("mq_timedreceive", queue, ..., _BYTES, None, None).decode()


def _listed_keys(_place: Surroundings) -> list[str]:
    """List the existing keys, by the numbers in the keyring."""
    numbers = filled("keyctl", _KEY_READ, _USER_KEYRING, ..., _BYTES)
    return [str(number) for number in struct.unpack(f"={len(numbers) // 4}i", numbers)]


def _watched(place: Surroundings) -> Callable[[], str]:
    watch = call("inotify_init1", os.O_NONBLOCK)
    call("inotify_add_watch", watch, place.other, _IN_CREATE)
    return lambda: taken(watch)


def _watched_widely(place: Surroundings) -> Callable[[], str]:
    watch = call("fanotify_init", _FAN_REPORT_NAMES | os.O_NONBLOCK, 0)
    call("fanotify_mark", watch, _FAN_MARK_ADD_FOLDER, _FAN_CREATE, AT_CWD, place.other)
    return lambda: taken(watch)


def _query_kernel(_place: Surroundings) -> str:
    """Request the names of all UNIX sockets from the socket directory of the kernel."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as netlink:
        body = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFF_FFFF, 0, _SHOW_NAME, 0, 0)
        header = struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0)
        netlink.send(header + body)
        answer = b""
        while select.select([netlink], [], [], 0.2)[0]:
            answer += netlink.recv(1 << 16)
        return answer.decode(errors="replace")


def _inherited(_place: Surroundings) -> list[str]:
    contents = []
    for descriptor in range(3, 64):
        try:
            contents.append(os.pread(descriptor, _BYTES, 0).decode(errors="replace"))
        except OSError:
            continue
    return contents


def _environment(_place: Surroundings) -> str:
    libc.getenv.restype = ctypes.c_char_p
    return str(libc.getenv(SECRET_WORD.encode()))


def _statx(place: Surroundings) -> list[int]:
    buffer = ctypes.create_string_buffer(256)
    call("statx", AT_CWD, f"{place.state}/key", 0x100, 0xFFF, buffer)
    size, seconds, nanoseconds = struct.unpack_from("=Q", buffer, 40) + struct.unpack_from("=qI", buffer, 112)
    return [struct.unpack_from("=Q", buffer, 32)[0], size, seconds * 1_000_000_000 + nanoseconds]


def _locked(lock: Callable[[int, int], object], kind: int, place: Surroundings) -> object:
    """Lock the readable file, and keep it open."""
    file = open(place.readable)  # noqa: SIM115 - open until the host has looked
    lock(file.fileno(), kind)
    return file.close


_CONTENTS: Rows = {
    "open: open() of Python, to read": lambda p: Path(f"{p.state}/key").read_text(),
    "openat: openat(2) to read, past Python": lambda p: raw(p.file),
    "list: os.listdir() of another home": lambda p: os.listdir(p.other),
    "getdents: getdents64(2)": lambda p: filled(
        "getdents64", opened(p.other, os.O_RDONLY), ..., _BYTES
    ).decode(errors="replace"),
    "names: the list of all homes": lambda p: os.listdir(p.homes),
    "through-hard-link: link(2) to another's file, read": _through_hard_link,
    "through-handle: name_to_handle_at(2), open_by_handle_at(2)": lambda p: taken(
        opened_by_handle(p.file, p.home, os.O_RDONLY)
    ),
    "by-program: execve(2) of a program that reads": lambda p: _output("cat", p.file),
    "run: execve(2) of another's program": lambda p: _output(f"{p.other}/prog"),
    "execveat: execveat(2) of another's program": _run_it_from_folder,
    "getxattr: getxattr(2) of a known name in another home": lambda p: filled(
        "getxattr", p.file, b"user.word", ..., _BYTES
    ).decode(),
    "inotify: inotify(7) on another home": ((shows_word, _touch_in_other), _watched),
    "fanotify: fanotify(7) on another home": ((shows_word, _touch_in_other), _watched_widely),
    "inherited: a descriptor inherited by accident": (_shows_ground_word, _inherited),
    "environment: a variable of the host's environment": (_shows_ground_word, _environment),
    "lease: fcntl(2) F_SETLEASE on a readable file": (
        found_by(_leased),
        partial(_locked, lambda fd, kind: fcntl.fcntl(fd, fcntl.F_SETLEASE, kind), fcntl.F_RDLCK),
    ),
    "environ: /proc/PID/environ": lambda p: raw(f"/proc/{p.victim}/environ"),
    "cmdline: /proc/PID/cmdline": lambda p: raw(f"/proc/{p.victim}/cmdline"),
    "mem: /proc/PID/mem, read": lambda p: os.pread(
        opened(f"/proc/{p.victim}/mem", os.O_RDONLY), WORD_DIGITS, p.address
    ).decode(),
    "fd: /proc/PID/fd": lambda p: raw(f"/proc/{p.victim}/fd/{p.descriptor}"),
    "clock: clock_gettime(2) of another process": (
        lambda world, seen: seen.claim == time.clock_gettime_ns(_clock_of(world.stranger.pid)),
        lambda p: time.clock_gettime_ns(_clock_of(p.victim)),
    ),
    "cwd: /proc/PID/cwd": lambda p: raw(f"/proc/{p.victim}/cwd/file.txt"),
    "task: /proc/PID/task/TID/environ": lambda p: raw(f"/proc/{p.victim}/task/{p.victim}/environ"),
    "vm-readv: process_vm_readv(2)": lambda p: transferred(
        "process_vm_readv", p.victim, p.address, bytes(WORD_DIGITS)
    ).decode(),
    "ptrace: ptrace(2), PTRACE_PEEKDATA": _peeked,
    "pidfd-getfd: pidfd_getfd(2)": lambda p: os.pread(
        call("pidfd_getfd", os.pidfd_open(p.victim), p.descriptor, 0), _BYTES, 0
    ).decode(),
    "processes: list of processes": (
        _listed(lambda world: world.stranger.pid),
        lambda _: os.listdir("/proc"),
    ),
    "shmat: shmat(2) of another's segment": lambda p: ctypes.string_at(
        attached(p.segment, _SHM_RDONLY), WORD_DIGITS
    ).decode(),
    "msgrcv: msgrcv(2) from another's queue": lambda p: filled(
        "msgrcv", p.messages, ..., _BYTES - 8, 0, _IPC_NOWAIT, skip=8
    ).decode(),
    "mq-receive: mq_timedreceive(2) from another's queue": _queued_message,
    "shm-open: shm_open(3), read": lambda p: raw(p.shared),
    "semctl: semctl(2), GETVAL": (
        lambda world, seen: seen.claim == number_of(world.canary),
        lambda p: call("semctl", p.semaphore, 0, _GETVAL),
    ),
    "shm-list: list of POSIX shared memory": (
        _listed(lambda world: Path(world.place.shared).name),
        lambda p: os.listdir(Path(p.shared).parent),
    ),
    "key: keyctl(2), KEYCTL_READ": lambda p: filled("keyctl", _KEY_READ, p.key, ..., _BYTES).decode(),
    "keyring: keyctl(2), the user's keyring": (_listed(lambda world: world.place.key), _listed_keys),
    "unix-names: /proc/net/unix": lambda _: Path("/proc/net/unix").read_text(errors="replace"),
    "sock-diag: netlink(7), NETLINK_SOCK_DIAG": _query_kernel,
}

_HOMES: Rows = {
    "stat: lstat(2) of a known name in another home": lambda p: _stat(p.file),
    "access: access(2): whether a name exists in another home": (
        lambda _world, seen: seen.claim == [True, False],
        lambda p: [os.access(path, os.F_OK) for path in (p.file, f"{p.other}/nothing")],
    ),
    "readlink: readlink(2) in another home": (shows_word, lambda p: os.readlink(f"{p.other}/link")),
}

_LOCKS: Rows = {
    "flock: flock(2) on a readable file": partial(_locked, fcntl.flock, fcntl.LOCK_SH),
    "record-lock: fcntl(2) F_SETLK on a readable file": (
        found_by(partial(_lock_denied, fcntl.lockf)),
        partial(_locked, fcntl.lockf, fcntl.LOCK_SH),
    ),
}

_BY_WAYS: Rows = {f"{title}, read": partial(_taken_by, way) for title, way in WAYS.items()}

_rows = partial(rows, AttemptKind.OTHER_USER)
READING = (
    *_rows(shows_word, {**_CONTENTS, **_BY_WAYS}),
    *_rows(_shows_metadata, _HOMES, residue=Residue.HOMES),
    *_rows(_shows_metadata, {"statx: statx(2) of a file of the runner": _statx}, residue=Residue.ELSEWHERE),
    *_rows(found_by(partial(_lock_denied, fcntl.flock)), _LOCKS, residue=Residue.LOCKS),
)
