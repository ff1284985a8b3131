"""Attempts of kind `tamper` on what is others': their processes, terminals, queues and keys.

Source: kill(2), pidfd_send_signal(2), fcntl(2), prlimit(2), setpriority(2), sched(7), ptrace(2),
process_vm_writev(2), ioctl_tty(2), sysvipc(7), mq_overview(7), keyctl(2).
"""

import ctypes
import fcntl
import os
import select
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from sandbox.selftest.attempt import Act, ActEvidence, Attempt, AttemptNeed, Oracle, Surroundings, tampering
from sandbox.selftest.calls import call, libc, raised
from sandbox.selftest.planted import key_named, message_queue_of, number_of, semaphore_value
from sandbox.selftest.world import World

__all__ = ["STRANGERS"]

_AT_CWD = -100
_F_SETOWN_EX, _F_SETSIG, _F_OWNER_PID = 15, 10, 1
_FIOSETOWN, _SIOCSPGRP, _FIOASYNC, _TIOCSTI = 0x8901, 0x8902, 0x5452, 0x5412
_SI_QUEUE = -1
_PTRACE_SEIZE, _PTRACE_INTERRUPT, _PTRACE_POKE, _PTRACE_DETACH = 0x4206, 0x4207, 4, 17
_SCHED_BATCH, _IOPRIO_IDLE = 3, 3 << 13
_KEYCTL_UPDATE = 2
_CHANGED_WORD = b"0" * 8
_ECHO_S = 0.3


def _signalled(world: World, _seen: ActEvidence) -> bool:
    return world.stranger.signalled


def _rewritten(world: World, _seen: ActEvidence) -> bool:
    return world.stranger.word != world.canary


def _limited(world: World, _seen: ActEvidence) -> bool:
    return world.stranger.limit("Max open files").split()[3] == "7"


def _slowed(world: World, _seen: ActEvidence) -> bool:
    return os.getpriority(os.PRIO_PROCESS, world.stranger.pid) == 7


def _moved(world: World, _seen: ActEvidence) -> bool:
    return len(os.sched_getaffinity(world.stranger.pid)) == 1


def _rescheduled(world: World, _seen: ActEvidence) -> bool:
    return os.sched_getscheduler(world.stranger.pid) == _SCHED_BATCH


def _kept_from_disk(world: World, _seen: ActEvidence) -> bool:
    return world.stranger.ioprio() == _IOPRIO_IDLE


def _doomed(world: World, _seen: ActEvidence) -> bool:
    return world.stranger.oom_score() == 500


def _typed(world: World, _seen: ActEvidence) -> bool:
    text = b""
    # The kernel passes on what is echoed a moment later, perhaps a letter at a time.
    while b"typed" not in text and select.select([world.terminal], [], [], _ECHO_S)[0]:
        text += os.read(world.terminal, 100)
    return b"typed" in text


def _semaphore_changed(world: World, _seen: ActEvidence) -> bool:
    return semaphore_value(world.place.semaphores) != number_of(world.canary)


def _queue_changed(world: World, _seen: ActEvidence) -> bool:
    return b"forged" in message_queue_of(world.place.queue)


def _message_sent(world: World, _seen: ActEvidence) -> bool:
    buffer = ctypes.create_string_buffer(100)
    call("msgrcv", world.place.messages, buffer, 90, 0, 0o4000)
    try:
        call("msgrcv", world.place.messages, buffer, 90, 0, 0o4000)
    except OSError:
        return False
    return b"forged" in buffer.raw


def _segment_changed(world: World, _seen: ActEvidence) -> bool:
    at = libc.shmat(world.place.segment, None, 0o10000)
    found = ctypes.string_at(at, len(world.canary))
    libc.shmdt(ctypes.c_void_p(at))
    return found != world.canary.encode()


def _key_changed(world: World, _seen: ActEvidence) -> bool:
    return key_named(f"toolcell-{world.canary[-12:]}") == b"forged"


def _thread_group(place: Surroundings) -> None:
    call("tgkill", place.victim, place.victim, signal.SIGUSR1)


def _information(place: Surroundings) -> bytes:
    return struct.pack("=iiiiii", signal.SIGUSR1, 0, _SI_QUEUE, 0, os.getpid(), os.getuid()).ljust(128, b"\0")


def _queued(place: Surroundings) -> None:
    call("rt_sigqueueinfo", place.victim, signal.SIGUSR1, _information(place))


def _queued_to_thread(place: Surroundings) -> None:
    call("rt_tgsigqueueinfo", place.victim, place.victim, signal.SIGUSR1, _information(place))


def _by_descriptor(place: Surroundings) -> None:
    signal.pidfd_send_signal(os.pidfd_open(place.victim), signal.SIGUSR1)


@contextmanager
def _noisy_socket() -> Iterator[int]:
    """Yield a socket whose owner is sent a signal, as soon as it has one."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fcntl.fcntl(ours, _F_SETSIG, signal.SIGUSR1)
        yield ours.fileno()
        fcntl.ioctl(ours, _FIOASYNC, struct.pack("=i", 1))
        theirs.send(b"x")


def _owner(place: Surroundings) -> None:
    with _noisy_socket() as noisy:
        fcntl.fcntl(noisy, fcntl.F_SETOWN, place.victim)


def _owner_ex(place: Surroundings) -> None:
    with _noisy_socket() as noisy:
        fcntl.fcntl(noisy, _F_SETOWN_EX, struct.pack("=ii", _F_OWNER_PID, place.victim))


def _owner_by_ioctl(request: int) -> Act:
    def act(place: Surroundings) -> None:
        with _noisy_socket() as noisy:
            fcntl.ioctl(noisy, request, struct.pack("=i", place.victim))

    return act


def _vm_writev(place: Surroundings) -> None:
    word = ctypes.create_string_buffer(_CHANGED_WORD)
    length = len(_CHANGED_WORD)
    ours = struct.pack("=QQ", ctypes.addressof(word), length)
    call("process_vm_writev", place.victim, ours, 1, struct.pack("=QQ", place.address, length), 1, 0)


def _poked(place: Surroundings) -> None:
    call("ptrace", _PTRACE_SEIZE, place.victim, None, None)
    call("ptrace", _PTRACE_INTERRUPT, place.victim, None, None)
    os.waitpid(place.victim, 0x4000_0000)
    call("ptrace", _PTRACE_POKE, place.victim, place.address, int.from_bytes(_CHANGED_WORD, "little"))
    call("ptrace", _PTRACE_DETACH, place.victim, None, None)


def _memory_file(place: Surroundings) -> None:
    descriptor = call("openat", _AT_CWD, f"/proc/{place.victim}/mem".encode(), os.O_RDWR, 0)
    os.pwrite(descriptor, _CHANGED_WORD, place.address)


def _doom(place: Surroundings) -> None:
    path = f"/proc/{place.victim}/oom_score_adj".encode()
    os.write(call("openat", _AT_CWD, path, os.O_WRONLY, 0), b"500")


def _prlimit(place: Surroundings) -> None:
    call("prlimit64", place.victim, 7, struct.pack("=QQ", 7, 7), None)


def _affinity(place: Surroundings) -> None:
    os.sched_setaffinity(place.victim, {min(os.sched_getaffinity(place.victim))})


def _scheduler(place: Surroundings) -> None:
    os.sched_setscheduler(place.victim, _SCHED_BATCH, os.sched_param(0))


def _scheduling_attributes(place: Surroundings) -> None:
    call("sched_setattr", place.victim, struct.pack("=IIQiIQQQ", 48, 0, 0, 7, 0, 0, 0, 0), 0)


def _terminal_output(place: Surroundings) -> None:
    os.write(call("openat", _AT_CWD, place.terminal.encode(), os.O_RDWR | os.O_NOCTTY, 0), b"typed")


def _terminal_input(place: Surroundings) -> None:
    terminal = call("openat", _AT_CWD, place.terminal.encode(), os.O_RDWR | os.O_NOCTTY, 0)
    for letter in b"typed":
        # Into its input, where it is echoed.
        fcntl.ioctl(terminal, _TIOCSTI, bytes([letter]))


def _message(place: Surroundings) -> None:
    call("msgsnd", place.messages, struct.pack("=q", 1) + b"forged", 6, 0o4000)


def _queue(place: Surroundings) -> None:
    queue = call("mq_open", place.queue.encode(), os.O_WRONLY | os.O_NONBLOCK, 0, None)
    call("mq_timedsend", queue, b"forged", 6, 0, None)


def _segment(place: Surroundings) -> None:
    at = libc.shmat(place.segment, None, 0)
    if at is None or at == ctypes.c_void_p(-1).value:
        raised("shmat", -1)
    ctypes.memmove(at, _CHANGED_WORD, len(_CHANGED_WORD))


def _semaphore(place: Surroundings) -> None:
    call("semop", place.semaphores, struct.pack("=Hhh", 0, 1, 0), 1)


def _semaphore_in_time(place: Surroundings) -> None:
    call("semtimedop", place.semaphores, struct.pack("=Hhh", 0, 1, 0), 1, None)


def _semaphore_set(place: Surroundings) -> None:
    call("semctl", place.semaphores, 0, 16, 7)


def _key(place: Surroundings) -> None:
    call("keyctl", _KEYCTL_UPDATE, place.key, b"forged", 6)


def _hit(name: str, technique: str, act: Act, escaped: Oracle = _signalled) -> Attempt:
    return tampering(name, technique, act, escaped, AttemptNeed.VICTIM)


STRANGERS: tuple[Attempt, ...] = (
    _hit("kill", "kill(2)", lambda p: os.kill(p.victim, signal.SIGUSR1)),
    _hit("killpg", "kill(2) of a group", lambda p: os.killpg(p.victim, signal.SIGUSR1)),
    _hit("tkill", "tkill(2)", lambda p: call("tkill", p.victim, signal.SIGUSR1)),
    _hit("tgkill", "tgkill(2)", _thread_group),
    _hit("sigqueue", "rt_sigqueueinfo(2)", _queued),
    _hit("tgsigqueue", "rt_tgsigqueueinfo(2)", _queued_to_thread),
    _hit("pidfd", "pidfd_send_signal(2)", _by_descriptor),
    _hit("setown", "fcntl(2) F_SETOWN: the kernel sends the signal", _owner),
    _hit("setown-ex", "fcntl(2) F_SETOWN_EX", _owner_ex),
    _hit("fiosetown", "ioctl(2) FIOSETOWN", _owner_by_ioctl(_FIOSETOWN)),
    _hit("siocspgrp", "ioctl(2) SIOCSPGRP", _owner_by_ioctl(_SIOCSPGRP)),
    _hit("vm-writev", "process_vm_writev(2)", _vm_writev, _rewritten),
    _hit("ptrace", "ptrace(2), PTRACE_POKEDATA", _poked, _rewritten),
    _hit("mem", "/proc/PID/mem, written", _memory_file, _rewritten),
    _hit("oom", "/proc/PID/oom_score_adj", _doom, _doomed),
    _hit("prlimit", "prlimit64(2) of another process", _prlimit, _limited),
    _hit("nice", "setpriority(2) of another process", lambda p: os.setpriority(0, p.victim, 7), _slowed),
    _hit("nice-group", "setpriority(2) of a group", lambda p: os.setpriority(1, p.victim, 7), _slowed),
    _hit("affinity", "sched_setaffinity(2) of another process", _affinity, _moved),
    _hit("scheduler", "sched_setscheduler(2) of another process", _scheduler, _rescheduled),
    _hit("sched-attr", "sched_setattr(2) of another process", _scheduling_attributes, _slowed),
    _hit(
        "ioprio",
        "ioprio_set(2) of another process",
        lambda p: call("ioprio_set", 1, p.victim, _IOPRIO_IDLE),
        _kept_from_disk,
    ),
    tampering(
        "terminal", "write(2) to a terminal of the host", _terminal_output, _typed, AttemptNeed.TERMINAL
    ),
    tampering("tiocsti", "ioctl(2) TIOCSTI", _terminal_input, _typed, AttemptNeed.TERMINAL),
    tampering("msgsnd", "msgsnd(2)", _message, _message_sent, AttemptNeed.IPC),
    tampering("mq-send", "mq_timedsend(2)", _queue, _queue_changed, AttemptNeed.IPC),
    tampering("shmat", "shmat(2), written", _segment, _segment_changed, AttemptNeed.IPC),
    tampering("semop", "semop(2)", _semaphore, _semaphore_changed, AttemptNeed.IPC),
    tampering("semtimedop", "semtimedop(2)", _semaphore_in_time, _semaphore_changed, AttemptNeed.IPC),
    tampering("semctl", "semctl(2), SETVAL", _semaphore_set, _semaphore_changed, AttemptNeed.IPC),
    tampering("keyctl", "keyctl(2), KEYCTL_UPDATE", _key, _key_changed, AttemptNeed.KEY),
)
