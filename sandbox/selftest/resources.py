"""Attempts of kind `resources` on files, descriptors, time and the host's attention.

The host measures while the act holds still, by what the kernel says of the process.

Source: getrlimit(2), fallocate(2), copy_file_range(2), splice(2), sendfile(2), sched(7), ioprio_set(2),
timer_create(2), proc_pid_timers(5), io_setup(2).
"""

import contextlib
import fcntl
import hashlib
import math
import os
import resource
import signal
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

from sandbox.host.process_stat import ProcessStat
from sandbox.selftest.attempt import Act, ActEvidence, Attempt, Surroundings, above, exactly, taking
from sandbox.selftest.calls import call
from sandbox.selftest.gaining import lasting
from sandbox.selftest.life import pulse, stay
from sandbox.selftest.world import LIMITS, World

__all__ = ["RESOURCES"]

_SCHED_FIFO, _SCHED_DEADLINE = 1, 6
_IOPRIO_REALTIME = 1 << 13
# One second lies between the signal and the end. Where a worker stays, the second that the call before has
# begun is whole for the next one, and where it renews its limit itself, it takes a look of the watch.
_BURNT_S = LIMITS.cpu_s + 2.4
# Far fewer than the kernel gives a user id, and more than all that is left to tools.
_TIMERS = 100
_MONOTONIC = 1
_LONG = LIMITS.file_bytes * 2
_PARTS = 2 * LIMITS.home_bytes // LIMITS.file_bytes


def _highest_descriptor(_world: World, pid: int) -> int:
    return max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))


def _descriptors(_world: World, pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _burnt(_world: World, pid: int) -> float:
    return ProcessStat.of(pid).cpu_s


def _limit(name: str) -> Callable[[World, int], float]:
    """Return what says how far a resource limit of a process goes."""

    def during(_world: World, pid: int) -> float:
        # Not by prlimit(2), which wants a privilege for the process of another user id.
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
        soft = next(line for line in lines if line.startswith(name))[len(name) :].split()[0]
        return math.inf if soft == "unlimited" else float(soft)

    return during


def _favour(_world: World, pid: int) -> int:
    return -os.getpriority(os.PRIO_PROCESS, pid)


def _scheduling(_world: World, pid: int) -> int:
    return os.sched_getscheduler(pid)


def _disk_class(_world: World, pid: int) -> int:
    return call("ioprio_get", 1, pid)


def _too_long(world: World, _seen: ActEvidence) -> bool:
    return any(path.stat().st_size > LIMITS.file_bytes for path in world.home.iterdir() if path.is_file())


def _disk(world: World, pid: int) -> float:
    """Return what the home of a process that lives holds on disk, in bytes."""
    os.stat(f"/proc/{pid}")
    return sum(path.stat().st_blocks * 512 for path in world.home.iterdir())


def _held_open(_world: World, pid: int) -> float:
    """Return what the files hold on disk that a process has open, in bytes."""
    folder = f"/proc/{pid}/fd"
    facts = [os.stat(f"{folder}/{name}") for name in os.listdir(folder)]
    return sum(each.st_blocks * 512 for each in facts if stat.S_ISREG(each.st_mode) and each.st_nlink == 0)


def _timers(_world: World, pid: int) -> int:
    return Path(f"/proc/{pid}/timers").read_bytes().count(b"ClockID:")


def _has_ring(_world: World, pid: int) -> int:
    """Count the rings of io_setup(2) that a process has."""
    return Path(f"/proc/{pid}/maps").read_bytes().count(b"[aio]")


def _outlived(world: World, _seen: ActEvidence) -> bool:
    return world.outlived()


def _told_too_much(_world: World, seen: ActEvidence) -> bool:
    return len(seen.text) > LIMITS.frame_bytes


def _printed_too_much(_world: World, seen: ActEvidence) -> bool:
    return seen.output_bytes > LIMITS.output_bytes


def _new(place: Surroundings, name: str = "long") -> int:
    return os.open(f"{place.home}/{name}", os.O_RDWR | os.O_CREAT, 0o600)


def _source(place: Surroundings) -> int:
    """Return a file as long as a file may be."""
    descriptor = _new(place, "source")
    os.ftruncate(descriptor, LIMITS.file_bytes)
    return descriptor


def _written(place: Surroundings) -> None:
    descriptor = _new(place)
    for _ in range(4):
        os.write(descriptor, bytes(LIMITS.file_bytes // 2))


def _written_far(place: Surroundings) -> None:
    os.pwrite(_new(place), b"x", _LONG)


def _copied(place: Surroundings) -> None:
    source, target = _source(place), _new(place)
    for _ in range(2):
        os.copy_file_range(source, target, LIMITS.file_bytes, 0)


def _sent(place: Surroundings) -> None:
    source, target = _source(place), _new(place)
    for _ in range(2):
        os.sendfile(target, source, 0, LIMITS.file_bytes)


def _spliced(place: Surroundings) -> None:
    read, write = os.pipe()
    target = _new(place)
    for _ in range(_LONG // 32768):
        os.write(write, bytes(32768))
        os.splice(read, target, 32768)


def _through_map(place: Surroundings) -> None:
    """Prepare the room by fallocate(2), which keeps a length that nobody is told of."""
    descriptor = _new(place)
    call("fallocate", descriptor, 0, 0, _LONG)


def _many_files(place: Surroundings) -> None:
    for number in range(_PARTS):
        os.write(_new(place, f"part-{number}"), bytes(place.file_bytes))
    place.hold()


def _nameless_files(place: Surroundings) -> None:
    for number in range(_PARTS):
        descriptor = _new(place, f"part-{number}")
        os.unlink(f"{place.home}/part-{number}")
        os.write(descriptor, bytes(place.file_bytes))
    place.hold()


def _opened(place: Surroundings) -> None:
    held: list[int] = []
    try:
        while len(held) < 4 * place.open_files:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        os.close(held.pop())
    place.hold()


def _duplicated(place: Surroundings) -> None:
    fcntl.fcntl(1, fcntl.F_DUPFD, 3 * place.open_files)
    place.hold()


def _placed(place: Surroundings) -> None:
    os.dup2(1, 3 * place.open_files)
    place.hold()


def _received(place: Surroundings) -> None:
    """Have the kernel make descriptors, as messages that carry them arrive."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for _ in range(4):
        socket.send_fds(ours, [b"x"], [1] * (place.open_files // 2))
        socket.recv_fds(theirs, 1, place.open_files)
    place.hold()


def _raised_limit(which: int, wanted: int) -> Act:
    def act(place: Surroundings) -> None:
        with contextlib.suppress(ValueError):
            resource.setrlimit(which, (wanted, wanted))
        place.hold()

    return act


def _raised_limit_the_old_way(place: Surroundings) -> None:
    with contextlib.suppress(OSError):
        call("setrlimit", resource.RLIMIT_NOFILE, struct.pack("=QQ", 4096, 4096))
    place.hold()


def _hash_until_burnt() -> None:
    while time.process_time() < _BURNT_S + 0.1:
        # Long enough that Python lets the other thread run.
        hashlib.pbkdf2_hmac("sha256", b"burn", b"burn", 20_000)


def _burn(place: Surroundings) -> None:
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    # Two at once: the limit is one of processor time, and this is over sooner.
    threads = [threading.Thread(target=_hash_until_burnt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    place.hold()


def _favoured(place: Surroundings) -> None:
    os.setpriority(os.PRIO_PROCESS, 0, -5)
    place.hold()


def _realtime(place: Surroundings) -> None:
    os.sched_setscheduler(0, _SCHED_FIFO, os.sched_param(1))
    place.hold()
    os.sched_setscheduler(0, 0, os.sched_param(0))


def _deadline(place: Surroundings) -> None:
    attributes = struct.pack("=IIQiIQQQ", 48, _SCHED_DEADLINE, 0, 0, 0, 1_000_000, 100_000_000, 100_000_000)
    call("sched_setattr", 0, attributes, 0)
    place.hold()


def _first_at_disk(place: Surroundings) -> None:
    call("ioprio_set", 1, 0, _IOPRIO_REALTIME)
    place.hold()


def _many_timers(place: Surroundings) -> None:
    identifier = bytearray(4)
    with contextlib.suppress(OSError):
        for _ in range(_TIMERS):
            call("timer_create", _MONOTONIC, None, identifier)
    place.hold()


def _reserved_requests(place: Surroundings) -> None:
    call("io_setup", 16, bytearray(8))
    place.hold()


def _silent(place: Surroundings) -> None:
    stay(place)


def _chatty(place: Surroundings) -> None:
    """Report progress for ever, which restarts the limit of silence."""
    pulse(place)
    while True:
        place.report()
        time.sleep(0.1)


def _long_answer(place: Surroundings) -> str:
    return "x" * (place.frame_bytes + 1)


def _long_output(place: Surroundings) -> None:
    for _ in range(2 * place.output_bytes // 1024):
        os.write(1, b"x" * 1024)


def _length(name: str, technique: str, act: Act) -> Attempt:
    return taking(name, technique, act, _too_long)


RESOURCES: tuple[Attempt, ...] = (
    _length("write", "write(2) beyond the length of a file", _written),
    _length("pwrite", "pwrite(2) at a far offset", _written_far),
    _length("ftruncate", "ftruncate(2) to a sparse length", lambda p: os.ftruncate(_new(p), _LONG)),
    _length("fallocate", "fallocate(2)", _through_map),
    _length("copy-file-range", "copy_file_range(2)", _copied),
    _length("sendfile", "sendfile(2)", _sent),
    _length("splice", "splice(2)", _spliced),
    taking(
        "files",
        "many files, each within the limit",
        _many_files,
        above(LIMITS.home_bytes),
        during=lasting(_disk, LIMITS.home_bytes),
        limit_s=60.0,
    ),
    taking(
        "nameless",
        "files without a name, held open",
        _nameless_files,
        above(LIMITS.home_bytes),
        during=lasting(_held_open, LIMITS.home_bytes),
        limit_s=60.0,
    ),
    taking("open", "openat(2) without end", _opened, above(LIMITS.open_files), during=_descriptors),
    taking("dupfd", "fcntl(2) F_DUPFD", _duplicated, above(LIMITS.open_files), during=_highest_descriptor),
    taking("dup2", "dup2(2)", _placed, above(LIMITS.open_files), during=_highest_descriptor),
    taking(
        "scm-rights", "recvmsg(2) with SCM_RIGHTS", _received, above(LIMITS.open_files), during=_descriptors
    ),
    taking(
        "prlimit",
        "prlimit64(2) of one's own limits",
        _raised_limit(resource.RLIMIT_FSIZE, LIMITS.file_bytes * 8),
        above(LIMITS.file_bytes),
        during=_limit("Max file size"),
    ),
    taking(
        "setrlimit",
        "setrlimit(2), the old system call",
        _raised_limit_the_old_way,
        above(LIMITS.open_files),
        during=_limit("Max open files"),
    ),
    taking("cpu", "SIGXCPU ignored", _burn, above(_BURNT_S), during=_burnt, limit_s=60.0),
    taking("nice", "setpriority(2) of oneself, upwards", _favoured, above(0), during=_favour),
    taking("fifo", "sched_setscheduler(2) SCHED_FIFO", _realtime, exactly(_SCHED_FIFO), during=_scheduling),
    taking(
        "deadline", "sched_setattr(2) SCHED_DEADLINE", _deadline, exactly(_SCHED_DEADLINE), during=_scheduling
    ),
    taking(
        "ioprio", "ioprio_set(2) of oneself", _first_at_disk, exactly(_IOPRIO_REALTIME), during=_disk_class
    ),
    taking("timers", "timer_create(2), which can send SIGCONT", _many_timers, above(0), during=_timers),
    taking("aio", "io_setup(2)", _reserved_requests, above(0), during=_has_ring),
    taking("silence", "no answer for ever", _silent, _outlived, limit_s=1.0),
    taking("progress", "progress for ever, and no answer", _chatty, _outlived, limit_s=1.0),
    taking("answer", "an answer longer than a frame may be", _long_answer, _told_too_much),
    taking("output", "output without end", _long_output, _printed_too_much),
)
