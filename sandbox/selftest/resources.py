"""Attempts of kind `resources`: exceed the limits of memory, files, descriptors, time or attention.

The host measures the process from /proc while the act waits.

Source: getrlimit(2), proc_pid_status(5), mmap(2), mremap(2), brk(2), mprotect(2), memfd_create(2), shmget(2),
mlock(2), fallocate(2), copy_file_range(2), splice(2), sendfile(2), sched(7), ioprio_set(2), timer_create(2),
proc_pid_timers(5), io_setup(2).
"""

import contextlib
import ctypes
import fcntl
import hashlib
import os
import resource
import signal
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sandbox.host.process_stat import ProcessStat
from sandbox.selftest.attempt import Act, ActEvidence, AttemptKind, Rows, Surroundings, rows
from sandbox.selftest.calls import attached, call, libc, opened, raised
from sandbox.selftest.measuring import above, amount, family, found_by, has, lasting, limit, links
from sandbox.selftest.surviving import pulse, stay
from sandbox.selftest.world import LIMITS, World

__all__ = ["RESOURCES"]

_KIB, _PAGE = 1024, 4096
_PROT_READ, _PROT_READ_WRITE = 1, 3
_MAP_SHARED, _MAP_PRIVATE = 1, 2
_MAP_SHARED_ANONYMOUS, _MAP_PRIVATE_ANONYMOUS, _MAP_GROWSDOWN, _MAP_LOCKED = 0x21, 0x22, 0x0100, 0x2000
_MREMAP_MAYMOVE = 1
_AT_RANDOM = 25
_MCL_CURRENT = 1
_MANY = 50
# Children stay until they are killed; on a busy machine it takes long to inspect so many.
_STAY_S, _LIMIT_S = 90, 60.0
_HELD_BYTES = 3 * LIMITS.memory_bytes
# Above the limit plus the memory that a worker uses before the act.
_TOO_MUCH_BYTES = int(2.5 * LIMITS.memory_bytes)
_LOCKED_BYTES = 4 * 1024 * _KIB
_CHILDREN, _IN_CHILD_BYTES = 8, int(0.8 * LIMITS.memory_bytes)
_TOGETHER_BYTES = 6 * LIMITS.memory_bytes
_TOO_MUCH_TOGETHER = 1.1 * LIMITS.call_memory_bytes
_SCHED_FIFO, _SCHED_IDLE, _SCHED_DEADLINE = 1, 5, 6
_IOPRIO_REALTIME = 1 << 13
# One second lies between the signal and the kill. A reused worker may use the rest of the second that the
# previous call had begun, and one that renews its limit itself is stopped only by a look of the watch.
_BURNT_S = LIMITS.cpu_s + 2.4
# Far fewer than the kernel allows a user id, but more than tools may have.
_TIMERS = 100
_MONOTONIC = 1
_LONG = LIMITS.file_bytes * 2
_PARTS = 2 * LIMITS.home_bytes // LIMITS.file_bytes


def _shares(_world: World, pid: int) -> int:
    """Return the memory of a process and its children, in bytes; shared memory is divided among users."""
    return sum(amount(each, "smaps_rollup", "Pss") for each in family(pid))


def _disk(world: World, pid: int) -> float:
    """Return the disk space of the home of a living process, in bytes."""
    os.stat(f"/proc/{pid}")
    return sum(path.stat().st_blocks * 512 for path in world.path.iterdir())


def _held_open(_world: World, pid: int) -> float:
    """Return the disk space of the open files of a process, in bytes."""
    folder = f"/proc/{pid}/fd"
    facts = [os.stat(f"{folder}/{name}") for name in os.listdir(folder)]
    return sum(each.st_blocks * 512 for each in facts if stat.S_ISREG(each.st_mode) and each.st_nlink == 0)


def _counted(file: str, mark: bytes) -> Callable[[World, int], int]:
    """Return a count of a mark in a file of /proc about a process."""
    return lambda _world, pid: Path(f"/proc/{pid}/{file}").read_bytes().count(mark)


def _most_cpu_s(_world: World, pid: int) -> float:
    return max(ProcessStat.of(each).cpu_s for each in family(pid))


def _too_long(world: World, _seen: ActEvidence) -> bool:
    return any(path.stat().st_size > LIMITS.file_bytes for path in world.path.iterdir() if path.is_file())


def _map(length: int, protection: int, flags: int, descriptor: int = -1) -> int:
    return call("mmap", None, length, protection, flags, descriptor, 0)


def _touch(at: int, length: int = _HELD_BYTES) -> None:
    ctypes.memset(at, 1, length)


def _mapped(flags: int, length: int = _HELD_BYTES, *, name: str | None = None) -> Act:
    def act(_place: Surroundings) -> None:
        descriptor = -1 if name is None else os.open(name, os.O_RDWR)
        _touch(_map(length, _PROT_READ_WRITE, flags, descriptor), length)

    return act


def _break(_place: Surroundings) -> None:
    start = call("brk", 0)
    if call("brk", start + _HELD_BYTES) < start + _HELD_BYTES:
        raise MemoryError
    _touch(start)


def _protected_later(_place: Surroundings) -> None:
    at = _map(_HELD_BYTES, _PROT_READ, _MAP_PRIVATE_ANONYMOUS)
    raised("mprotect", libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(_HELD_BYTES), _PROT_READ_WRITE))
    _touch(at)


def _moved(_place: Surroundings) -> None:
    at = _map(_PAGE, _PROT_READ_WRITE, _MAP_PRIVATE_ANONYMOUS)
    _touch(call("mremap", at, _PAGE, _HELD_BYTES, _MREMAP_MAYMOVE, 0))


def _stack(_place: Surroundings) -> None:
    """Grow the stack as far as the hard limit."""
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    resource.setrlimit(resource.RLIMIT_STACK, (hard, hard))
    libc.getauxval.restype = ctypes.c_ulong
    bottom = libc.getauxval(ctypes.c_ulong(_AT_RANDOM)) - _HELD_BYTES
    if hard != resource.RLIM_INFINITY and hard < _HELD_BYTES + 16 * _PAGE:
        # Beyond the limit the kernel kills the process instead of returning an error.
        raise MemoryError
    _touch(bottom, _HELD_BYTES - 64 * _PAGE)


def _in_pieces(piece: Callable[[Surroundings], int]) -> Act:
    """Return an act that holds memory in files, each of at most the maximum file size."""

    def act(place: Surroundings) -> None:
        for _ in range(_HELD_BYTES // LIMITS.file_bytes):
            descriptor = piece(place)
            _mapped_file(descriptor, LIMITS.file_bytes)
            # The mapping keeps the file; an open descriptor would count against the limit of open files.
            os.close(descriptor)

    return act


def _mapped_file(descriptor: int, length: int) -> None:
    os.ftruncate(descriptor, length)
    _touch(_map(length, _PROT_READ_WRITE, _MAP_SHARED, descriptor), length)


def _shared_file(place: Surroundings) -> int:
    path = f"/dev/shm/toolcell-{place.fresh}"  # noqa: S108 - what shm_open(3) does
    descriptor = opened(path, os.O_CREAT | os.O_RDWR, 0o600)
    call("unlinkat", -100, path, 0)
    return descriptor


def _several(_place: Surroundings) -> None:
    """Allocate in several processes more than one may have."""
    read, write = os.pipe()
    for _ in range(_CHILDREN):
        if os.fork() == 0:
            held = bytearray(_IN_CHILD_BYTES)
            os.write(write, b"+")
            os.close(write)
            time.sleep(_STAY_S)
            os._exit(len(held) and 0)
    # Only the children keep the writing end, so that the exit of a failed one is noticed too.
    os.close(write)
    while os.read(read, 1):
        pass


def _many(_place: Surroundings) -> None:
    for _ in range(_MANY):
        if os.fork() == 0:
            signal.alarm(_STAY_S)
            signal.pause()


def _lock_page(_place: Surroundings) -> None:
    at = _map(_LOCKED_BYTES, _PROT_READ_WRITE, _MAP_SHARED_ANONYMOUS)
    raised("mlock", libc.mlock(ctypes.c_void_p(at), ctypes.c_size_t(_LOCKED_BYTES)))


def _new(place: Surroundings, name: str = "long") -> int:
    return os.open(f"{place.home}/{name}", os.O_RDWR | os.O_CREAT, 0o600)


def _twice(copy: Callable[[int, int], object]) -> Act:
    """Return an act that copies a file of maximum size to the same target twice."""

    def act(place: Surroundings) -> None:
        source, target = _new(place, "source"), _new(place)
        os.ftruncate(source, LIMITS.file_bytes)
        for _ in range(2):
            copy(source, target)

    return act


def _written(place: Surroundings) -> None:
    descriptor = _new(place)
    for _ in range(4):
        os.write(descriptor, bytes(LIMITS.file_bytes // 2))


def _spliced(place: Surroundings) -> None:
    read, write = os.pipe()
    target = _new(place)
    for _ in range(_LONG // 32768):
        os.write(write, bytes(32768))
        os.splice(read, target, 32768)


def _filled_files(place: Surroundings, *, nameless: bool = False) -> None:
    for number in range(_PARTS):
        descriptor = _new(place, f"part-{number}")
        if nameless:
            os.unlink(f"{place.home}/part-{number}")
        os.write(descriptor, bytes(LIMITS.file_bytes))


def _opened(_place: Surroundings) -> None:
    held: list[int] = []
    try:
        while len(held) < 4 * LIMITS.open_files:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        os.close(held.pop())


def _received(_place: Surroundings) -> object:
    """Receive messages with descriptors, which the kernel creates."""
    pair = ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for _ in range(4):
        socket.send_fds(ours, [b"x"], [1] * (LIMITS.open_files // 2))
        socket.recv_fds(theirs, 1, LIMITS.open_files)
    return pair


def _hash_until_burnt() -> None:
    while time.process_time() < _BURNT_S + 0.1:
        # Long enough that Python lets the other thread run.
        hashlib.pbkdf2_hmac("sha256", b"burn", b"burn", 20_000)


def _burn(_place: Surroundings) -> None:
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    # Two threads, to use up the limit of processor time sooner.
    threads = [threading.Thread(target=_hash_until_burnt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _burn_in_child(_place: Surroundings) -> None:
    read, write = os.pipe()
    if os.fork() == 0:
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_CPU, (resource.getrlimit(resource.RLIMIT_CPU)[1],) * 2)
        _hash_until_burnt()
        os.close(write)
        time.sleep(_STAY_S)
        os._exit(0)
    os.close(write)
    os.read(read, 1)


def _realtime(_place: Surroundings) -> object:
    os.sched_setscheduler(0, _SCHED_FIFO, os.sched_param(1))
    return lambda: os.sched_setscheduler(0, 0, os.sched_param(0))


def _deadline(_place: Surroundings) -> None:
    attributes = struct.pack("=IIQiIQQQ", 48, _SCHED_DEADLINE, 0, 0, 0, 1_000_000, 100_000_000, 100_000_000)
    call("sched_setattr", 0, attributes, 0)


def _many_timers(_place: Surroundings) -> None:
    identifier = bytearray(4)
    with contextlib.suppress(OSError):
        for _ in range(_TIMERS):
            call("timer_create", _MONOTONIC, None, identifier)


def _chatty(place: Surroundings) -> None:
    """Report progress for ever, which restarts the idle limit."""
    pulse(place)
    while True:
        place.report()
        time.sleep(0.1)


def _long_output(_place: Surroundings) -> None:
    for _ in range(2 * LIMITS.output_bytes // 1024):
        os.write(1, b"x" * 1024)


_RESIDENT = above(_TOO_MUCH_BYTES, lambda _world, pid: amount(pid, "status", "VmRSS"))
_LOCKS = above(1024 * _KIB, lambda _world, pid: amount(pid, "status", "VmLck"))
_MANY_DESCRIPTORS = above(LIMITS.open_files, lambda _world, pid: len(links(pid)))
_HIGH_DESCRIPTOR = above(LIMITS.open_files, lambda _world, pid: max(links(pid)))
_TOGETHER = lasting(_TOO_MUCH_TOGETHER, _shares)
_FAVOUR = above(0, lambda _world, pid: -os.getpriority(os.PRIO_PROCESS, pid))
_FIFO = found_by(lambda _world, pid: os.sched_getscheduler(pid) == _SCHED_FIFO)
_IDLE = found_by(lambda _world, pid: os.sched_getscheduler(pid) == _SCHED_IDLE)
_DEADLINE = found_by(lambda _world, pid: os.sched_getscheduler(pid) == _SCHED_DEADLINE)
_DISK_CLASS = found_by(lambda _world, pid: call("ioprio_get", 1, pid) == _IOPRIO_REALTIME)

_ALONE: Rows = {
    "heap: malloc(3), as Python objects": lambda _: bytearray(_HELD_BYTES),
    "mmap: mmap(2), private and anonymous": _mapped(_MAP_PRIVATE_ANONYMOUS),
    "mmap-zero: mmap(2), private, of /dev/zero": _mapped(_MAP_PRIVATE, name="/dev/zero"),
    "brk": _break,
    "mprotect: mprotect(2) of what was mapped to read": _protected_later,
    "mremap": _moved,
    "memfd: memfd_create(2)": _in_pieces(lambda _: call("memfd_create", b"held", 0)),
    "shmget: shmget(2), shmat(2), written": lambda p: _touch(
        attached(call("shmget", p.fresh, _HELD_BYTES, 0o1600), 0)
    ),
    "shm-open: shm_open(3), mapped": _in_pieces(_shared_file),
    "stack: the stack, after setrlimit(2) RLIMIT_STACK": _stack,
    "growsdown: mmap(2) with MAP_GROWSDOWN": _mapped(_MAP_PRIVATE_ANONYMOUS | _MAP_GROWSDOWN),
    "memfd-secret: memfd_secret(2)": (
        found_by(has("secretmem")),
        lambda _: _mapped_file(call("memfd_secret", 0), _PAGE),
    ),
    "mlock": (_LOCKS, _lock_page),
    "mlockall": (_LOCKS, lambda _: raised("mlockall", libc.mlockall(_MCL_CURRENT))),
    "mmap-locked: mmap(2) with MAP_LOCKED": (
        _LOCKS,
        lambda _: _map(_LOCKED_BYTES, _PROT_READ_WRITE, _MAP_SHARED_ANONYMOUS | _MAP_LOCKED),
    ),
    "write: write(2) beyond the length of a file": (_too_long, _written),
    "pwrite: pwrite(2) at a far offset": (_too_long, lambda p: os.pwrite(_new(p), b"x", _LONG)),
    "ftruncate: ftruncate(2) to a sparse length": (_too_long, lambda p: os.ftruncate(_new(p), _LONG)),
    "fallocate": (_too_long, lambda p: call("fallocate", _new(p), 0, 0, _LONG)),
    "copy-file-range: copy_file_range(2)": (
        _too_long,
        _twice(lambda source, target: os.copy_file_range(source, target, LIMITS.file_bytes, 0)),
    ),
    "sendfile": (_too_long, _twice(lambda source, target: os.sendfile(target, source, 0, LIMITS.file_bytes))),
    "splice": (_too_long, _spliced),
    "open: openat(2) without end": (_MANY_DESCRIPTORS, _opened),
    "scm-rights: recvmsg(2) with SCM_RIGHTS": (_MANY_DESCRIPTORS, _received),
    "dupfd: fcntl(2) F_DUPFD": (
        _HIGH_DESCRIPTOR,
        lambda _: fcntl.fcntl(1, fcntl.F_DUPFD, 3 * LIMITS.open_files),
    ),
    "dup2": (_HIGH_DESCRIPTOR, lambda _: os.dup2(1, 3 * LIMITS.open_files)),
    "prlimit: prlimit64(2) of one's own limits": (
        above(LIMITS.file_bytes, lambda _world, pid: limit("Max file size", pid)),
        lambda _: resource.setrlimit(resource.RLIMIT_FSIZE, (8 * LIMITS.file_bytes,) * 2),
    ),
    "setrlimit: setrlimit(2), the old system call": (
        above(LIMITS.open_files, lambda _world, pid: limit("Max open files", pid)),
        lambda _: call("setrlimit", resource.RLIMIT_NOFILE, struct.pack("=QQ", 4096, 4096)),
    ),
    "nice: setpriority(2) of oneself, upwards": (_FAVOUR, lambda _: os.setpriority(os.PRIO_PROCESS, 0, -5)),
    "fifo: sched_setscheduler(2) SCHED_FIFO": (_FIFO, _realtime),
    "idle: sched_setscheduler(2) SCHED_IDLE, to hold locks unscheduled": (
        _IDLE,
        lambda _: os.sched_setscheduler(0, _SCHED_IDLE, os.sched_param(0)),
    ),
    "deadline: sched_setattr(2) SCHED_DEADLINE": (_DEADLINE, _deadline),
    "ioprio: ioprio_set(2) of oneself": (_DISK_CLASS, lambda _: call("ioprio_set", 1, 0, _IOPRIO_REALTIME)),
    "timers: timer_create(2), to send SIGCONT": (above(0, _counted("timers", b"ClockID:")), _many_timers),
    "aio: io_setup(2)": (above(0, _counted("maps", b"[aio]")), lambda _: call("io_setup", 16, bytearray(8))),
    "answer: an answer longer than a frame may be": (
        lambda _world, seen: len(seen.text) > LIMITS.frame_bytes,
        lambda _: "x" * (LIMITS.frame_bytes + 1),
    ),
    "output: endless output": (lambda _world, seen: seen.output_bytes > LIMITS.output_bytes, _long_output),
}

_AT_LENGTH: Rows = {
    "shared: mmap(2), shared and anonymous": _mapped(_MAP_SHARED_ANONYMOUS, _TOGETHER_BYTES),
    "several: memory of several processes together": _several,
    "fork: fork(2), fifty times": (lasting(_MANY, lambda _world, pid: len(family(pid))), _many),
    "files: many files, each within the limit": (lasting(LIMITS.home_bytes, _disk), _filled_files),
    "nameless: files without a name, held open": (
        lasting(LIMITS.home_bytes, _held_open),
        partial(_filled_files, nameless=True),
    ),
    "cpu: SIGXCPU ignored": (above(_BURNT_S, _most_cpu_s), _burn),
    "cpu-child: SIGXCPU ignored by a child with a raised limit": (
        above(_BURNT_S, _most_cpu_s),
        _burn_in_child,
    ),
}

_UNTIL_ENDED: Rows = {
    "silence: no answer for ever": stay,
    "progress: progress for ever, and no answer": _chatty,
}

RESOURCES = (
    *rows(AttemptKind.RESOURCES, _RESIDENT, _ALONE),
    *rows(AttemptKind.RESOURCES, _TOGETHER, _AT_LENGTH, limit_s=_LIMIT_S),
    *rows(AttemptKind.RESOURCES, lambda world, _seen: world.outlived(), _UNTIL_ENDED, limit_s=1.0),
)
