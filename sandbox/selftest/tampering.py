"""Attempts of kind `tamper`: change others' processes, queues and keys, reach a socket, gain a privilege.

Source: kill(2), pidfd_send_signal(2), fcntl(2), prlimit(2), setpriority(2), sched(7), ptrace(2),
process_vm_writev(2), ioctl_tty(2), sysvipc(7), mq_overview(7), keyctl(2), socket(7), unix(7), tcp(7), udp(7),
netlink(7), packet(7), raw(7), socketpair(2), fifo(7), namespaces(7), unshare(2), clone(2), setns(2),
chroot(2), personality(2), bpf(2), perf_event_open(2), userfaultfd(2).
"""

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from sandbox.selftest.attempt import (
    Act,
    ActEvidence,
    AttemptKind,
    Judge,
    Oracle,
    Rows,
    Surroundings,
    rows,
)
from sandbox.selftest.calls import attached, call, filled, libc, opened, put, raised, seize, transferred
from sandbox.selftest.kernel_objects import number_of
from sandbox.selftest.measuring import family, found_by, has, limit, links
from sandbox.selftest.world import World

__all__ = ["TAMPERING"]

_F_SETOWN_EX, _F_SETSIG, _F_OWNER_PID = 15, 10, 1
_FIOSETOWN, _SIOCSPGRP, _FIOASYNC, _TIOCSTI = 0x8901, 0x8902, 0x5452, 0x5412
_SI_QUEUE = -1
_PTRACE_POKE, _PTRACE_DETACH = 4, 17
_SCHED_BATCH, _IOPRIO_IDLE = 3, 3 << 13
_KEYCTL_UPDATE, _KEYCTL_READ, _GETVAL, _SETVAL, _IPC_NOWAIT, _SHM_RDONLY = 2, 11, 12, 16, 0o4000, 0o10000
_BYTES = 100
_CHANGED_WORD = b"0" * 8
_ECHO_S = 0.3
_MSG_FASTOPEN = 0x2000_0000
_IPPROTO_MPTCP = 262
_AF_NETLINK, _AF_PACKET, _AF_RXRPC, _AF_ALG, _AF_VSOCK = 16, 17, 33, 38, 40
_NETLINK_XFRM = 6
_SO_PROTOCOL, _SO_DOMAIN = 38, 39
_LINGER = struct.Struct("2i")
_CLONE_NEWUSER, _CLONE_NEWNS, _CLONE_NEWUTS = 0x1000_0000, 0x0002_0000, 0x0400_0000
_PR_SET_DUMPABLE = 4
_ADDR_NO_RANDOMIZE = 0x0004_0000


def _stranger(fact: Callable[[int], object], wanted: object) -> Oracle:
    """Return an oracle: a fact about the stranger's process has changed."""
    return lambda world, _seen: fact(world.stranger.pid) == wanted


def _rewritten(world: World, _seen: ActEvidence) -> bool:
    return world.stranger.word != world.canary


def _typed(world: World, _seen: ActEvidence) -> bool:
    text = b""
    # The kernel delivers the echo a moment later, perhaps one letter at a time.
    while b"typed" not in text and select.select([world.terminal], [], [], _ECHO_S)[0]:
        text += os.read(world.terminal, 100)
    return b"typed" in text


def _reached(world: World, _seen: ActEvidence) -> bool:
    return bool(select.select(world.listening, [], [], 0)[0])


def _holds(wanted: object, read: Callable[[Surroundings], object]) -> Oracle:
    """Return an oracle: one of four reads of a kernel object returns a value. An engine may deny reads."""

    def holds(world: World, _seen: ActEvidence) -> bool:
        with contextlib.suppress(OSError):
            return any(read(world.place) == wanted for _ in range(4))
        return False

    return holds


def _segment_word(place: Surroundings) -> bytes:
    at = attached(place.segment, _SHM_RDONLY)
    present = ctypes.string_at(at, len(_CHANGED_WORD))
    libc.shmdt(ctypes.c_void_p(at))
    return present


def _queued(place: Surroundings) -> bytes:
    queue = call("mq_open", place.queue, os.O_RDONLY | os.O_NONBLOCK, 0, None)
    try:
        return filled("mq_timedreceive", queue, ..., _BYTES, None, None)
    finally:
        os.close(queue)


def _semaphore_changed(world: World, _seen: ActEvidence) -> bool:
    return libc.semctl(world.place.semaphore, 0, _GETVAL) not in (-1, number_of(world.canary))


def _listens(world: World, _pid: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", world.place.free_port), timeout=2).close()
    except OSError:
        return False
    return True


def _sockets_of(pid: int) -> Iterator[socket.socket]:
    """Yield a duplicate of each socket of a process, closed before the next one."""
    process = os.pidfd_open(pid)
    try:
        for descriptor, link in links(pid).items():
            if link.startswith("socket:"):
                # Family and type are passed: they cannot be detected for some families without addresses.
                duplicate = call("pidfd_getfd", process, descriptor, 0)
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, duplicate) as end:
                    yield end
    finally:
        os.close(process)


def _lingers(_world: World, pid: int) -> bool:
    """Return whether a socket of a process delays the last process that closes it."""
    options = (end.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER.size) for end in _sockets_of(pid))
    return any(_LINGER.unpack(option)[1] for option in options)


def _differs(link: str) -> Callable[[World, int], bool]:
    """Return a look for a process or descendant whose root or namespace is not the host's."""
    return lambda _world, pid: any(
        os.readlink(f"/proc/{each}/{link}") != os.readlink(f"/proc/self/{link}") for each in family(pid)
    )


def _not_randomised(_world: World, pid: int) -> bool:
    return bool(int(Path(f"/proc/{pid}/personality").read_text(), 16) & _ADDR_NO_RANDOMIZE)


def _hidden(_world: World, pid: int) -> bool:
    return os.getuid() != 0 and os.stat(f"/proc/{pid}/environ").st_uid == 0


def _siginfo() -> bytes:
    return struct.pack("=iiiiii", signal.SIGUSR1, 0, _SI_QUEUE, 0, os.getpid(), os.getuid()).ljust(128, b"\0")


def _owned(give: Callable[[int, int], object]) -> Act:
    """Return an act that makes the stranger the owner of a socket, and triggers a signal to it."""

    def act(place: Surroundings) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            fcntl.fcntl(ours, _F_SETSIG, signal.SIGUSR1)
            give(ours.fileno(), place.victim)
            fcntl.ioctl(ours, _FIOASYNC, struct.pack("=i", 1))
            theirs.send(b"x")

    return act


def _poked(place: Surroundings) -> None:
    seize(place.victim)
    call("ptrace", _PTRACE_POKE, place.victim, place.address, int.from_bytes(_CHANGED_WORD, "little"))
    call("ptrace", _PTRACE_DETACH, place.victim, None, None)


def _terminal_input(place: Surroundings) -> None:
    terminal = opened(place.terminal, os.O_RDWR | os.O_NOCTTY)
    for letter in b"typed":
        # Into the terminal's input, where it is echoed.
        fcntl.ioctl(terminal, _TIOCSTI, bytes([letter]))


def _send(place: Surroundings) -> None:
    queue = call("mq_open", place.queue, os.O_WRONLY | os.O_NONBLOCK, 0, None)
    call("mq_timedsend", queue, b"forged", 6, 0, None)


def _tcp(place: Surroundings) -> tuple[str, int]:
    return "127.0.0.1", place.port


def _udp(place: Surroundings) -> tuple[str, int]:
    return "127.0.0.1", place.datagram_port


def _connecting(
    address: Callable[[Surroundings], tuple[str, int] | str],
    family: int = socket.AF_INET,
    kind: int = socket.SOCK_STREAM,
    protocol: int = 0,
) -> Act:
    """Return an act that connects, and sends a byte if connecting alone is not visible."""

    def act(place: Surroundings) -> None:
        with socket.socket(family, kind, protocol) as client:
            client.connect(address(place))
            if kind == socket.SOCK_DGRAM:
                client.send(b"x")

    return act


def _listen(place: Surroundings) -> socket.socket:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", place.free_port))
    server.listen()
    return server


def _linger(_place: Surroundings) -> object:
    pair = socket.socketpair()
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER.pack(1, 3600))
    return pair


def _end(kind: int = socket.SOCK_DGRAM) -> socket.socket:
    return socket.socketpair(socket.AF_UNIX, kind)[0]


def _pair_connect(place: Surroundings) -> None:
    ours = _end()
    ours.connect(place.datagram)
    ours.send(b"x")


def _pair_sendmmsg(place: Surroundings) -> None:
    name = ctypes.create_string_buffer(struct.pack("=H", socket.AF_UNIX) + place.datagram.encode() + b"\0")
    data = ctypes.create_string_buffer(b"x")
    vector = ctypes.create_string_buffer(struct.pack("=QQ", ctypes.addressof(data), 1))
    where = (ctypes.addressof(name), len(name) - 1, ctypes.addressof(vector), 1, 0, 0, 0, 0)
    ours = _end()
    call("sendmmsg", ours.fileno(), bytearray(struct.pack("=QIxxxxQQQQixxxxIxxxx", *where)), 1, 0)


def _holding(family: int, kind: int, protocol: int = 0) -> tuple[Judge, Act]:
    """Return an act that makes a socket, and a judge that finds it by the kernel's report."""

    def look(_world: World, pid: int) -> bool:
        options = ((_SO_DOMAIN, family), (_SO_PROTOCOL, protocol))
        return any(
            all(end.getsockopt(socket.SOL_SOCKET, option) == value for option, value in options)
            for end in _sockets_of(pid)
        )

    return found_by(look), lambda _place: socket.socket(family, kind, protocol)


def _cloned(clone: Callable[[], int]) -> Act:
    def act(_place: Surroundings) -> None:
        if clone() == 0:
            time.sleep(10)
            os._exit(0)

    return act


def _setns(_place: Surroundings) -> None:
    """Enter a namespace made by another process."""
    read, write = os.pipe()
    if os.fork() == 0:
        call("unshare", _CLONE_NEWUTS)
        os.write(write, b"+")
        time.sleep(10)
        os._exit(0)
    os.close(write)
    if not os.read(read, 1):
        raise PermissionError(1, "no namespace to enter")
    child = int(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()[0])
    call("setns", os.pidfd_open(child), _CLONE_NEWUTS)


def _perf(place: Surroundings) -> None:
    attributes = struct.pack("=IIQ", 1, 112, 1).ljust(40, b"\0") + struct.pack("=Q", 0x61)
    call("perf_event_open", attributes.ljust(112, b"\0"), place.victim, -1, -1, 0)


_SLOWED = _stranger(lambda pid: os.getpriority(os.PRIO_PROCESS, pid), 7)

_SIGNALS: Rows = {
    "kill": lambda p: os.kill(p.victim, signal.SIGUSR1),
    "killpg: kill(2) of a group": lambda p: os.killpg(p.victim, signal.SIGUSR1),
    "tkill": lambda p: call("tkill", p.victim, signal.SIGUSR1),
    "tgkill": lambda p: call("tgkill", p.victim, p.victim, signal.SIGUSR1),
    "sigqueue: rt_sigqueueinfo(2)": lambda p: call("rt_sigqueueinfo", p.victim, signal.SIGUSR1, _siginfo()),
    "tgsigqueue: rt_tgsigqueueinfo(2)": lambda p: call(
        "rt_tgsigqueueinfo", p.victim, p.victim, signal.SIGUSR1, _siginfo()
    ),
    "pidfd: pidfd_send_signal(2)": lambda p: signal.pidfd_send_signal(
        os.pidfd_open(p.victim), signal.SIGUSR1
    ),
    "setown: fcntl(2) F_SETOWN": _owned(lambda fd, pid: fcntl.fcntl(fd, fcntl.F_SETOWN, pid)),
    "setown-ex: fcntl(2) F_SETOWN_EX": _owned(
        lambda fd, pid: fcntl.fcntl(fd, _F_SETOWN_EX, struct.pack("=ii", _F_OWNER_PID, pid))
    ),
    "fiosetown: ioctl(2) FIOSETOWN": _owned(
        lambda fd, pid: fcntl.ioctl(fd, _FIOSETOWN, struct.pack("=i", pid))
    ),
    "siocspgrp: ioctl(2) SIOCSPGRP": _owned(
        lambda fd, pid: fcntl.ioctl(fd, _SIOCSPGRP, struct.pack("=i", pid))
    ),
    "vm-writev: process_vm_writev(2)": (
        _rewritten,
        lambda p: str(transferred("process_vm_writev", p.victim, p.address, _CHANGED_WORD)),
    ),
    "ptrace: ptrace(2), PTRACE_POKEDATA": (_rewritten, _poked),
    "mem: /proc/PID/mem, written": (
        _rewritten,
        lambda p: os.pwrite(opened(f"/proc/{p.victim}/mem", os.O_RDWR), _CHANGED_WORD, p.address),
    ),
    "oom: /proc/PID/oom_score_adj": (
        _stranger(lambda pid: Path(f"/proc/{pid}/oom_score_adj").read_text(), "500\n"),
        lambda p: put(opened(f"/proc/{p.victim}/oom_score_adj", os.O_WRONLY), b"500"),
    ),
    "prlimit: prlimit64(2) of another process": (
        _stranger(partial(limit, "Max open files"), 7),
        lambda p: call("prlimit64", p.victim, 7, struct.pack("=QQ", 7, 7), None),
    ),
    "nice: setpriority(2) of another": (_SLOWED, lambda p: os.setpriority(os.PRIO_PROCESS, p.victim, 7)),
    "nice-group: setpriority(2) of a group": (_SLOWED, lambda p: os.setpriority(os.PRIO_PGRP, p.victim, 7)),
    "sched-attr: sched_setattr(2) of another process": (
        _SLOWED,
        lambda p: call("sched_setattr", p.victim, struct.pack("=IIQiIQQQ", 48, 0, 0, 7, 0, 0, 0, 0), 0),
    ),
    "affinity: sched_setaffinity(2) of another process": (
        _stranger(lambda pid: len(os.sched_getaffinity(pid)), 1),
        lambda p: os.sched_setaffinity(p.victim, {min(os.sched_getaffinity(p.victim))}),
    ),
    "scheduler: sched_setscheduler(2) of another process": (
        _stranger(os.sched_getscheduler, _SCHED_BATCH),
        lambda p: os.sched_setscheduler(p.victim, _SCHED_BATCH, os.sched_param(0)),
    ),
    "ioprio: ioprio_set(2) of another process": (
        _stranger(lambda pid: call("ioprio_get", 1, pid), _IOPRIO_IDLE),
        lambda p: call("ioprio_set", 1, p.victim, _IOPRIO_IDLE),
    ),
    "perf: perf_event_open(2)": (found_by(has("perf_event")), _perf),
    "terminal: write(2) to a terminal of the host": (
        _typed,
        lambda p: put(opened(p.terminal, os.O_RDWR | os.O_NOCTTY), b"typed"),
    ),
    "tiocsti: ioctl(2) TIOCSTI": (_typed, _terminal_input),
    "msgsnd": (
        _holds(b"forged", lambda p: filled("msgrcv", p.messages, ..., _BYTES, 0, _IPC_NOWAIT, skip=8)),
        lambda p: call("msgsnd", p.messages, struct.pack("=q", 1) + b"forged", 6, _IPC_NOWAIT),
    ),
    "mq-send: mq_timedsend(2)": (_holds(b"forged", _queued), _send),
    "shmat: shmat(2), written": (
        _holds(_CHANGED_WORD, _segment_word),
        lambda p: ctypes.memmove(attached(p.segment, 0), _CHANGED_WORD, len(_CHANGED_WORD)),
    ),
    "semop": (_semaphore_changed, lambda p: call("semop", p.semaphore, struct.pack("=Hhh", 0, 1, 0), 1)),
    "semtimedop": (
        _semaphore_changed,
        lambda p: call("semtimedop", p.semaphore, struct.pack("=Hhh", 0, 1, 0), 1, None),
    ),
    "semctl: semctl(2), SETVAL": (_semaphore_changed, lambda p: call("semctl", p.semaphore, 0, _SETVAL, 7)),
    "keyctl: keyctl(2), KEYCTL_UPDATE": (
        _holds(b"forged", lambda p: filled("keyctl", _KEYCTL_READ, p.key, ..., _BYTES)),
        lambda p: call("keyctl", _KEYCTL_UPDATE, p.key, b"forged", 6),
    ),
}

_SOCKETS: Rows = {
    "tcp: connect(2) over TCP": _connecting(_tcp),
    "tcp6: connect(2) over TCP, by an address of IPv6": _connecting(
        lambda p: ("::ffff:127.0.0.1", p.port), socket.AF_INET6
    ),
    "fast-open: sendto(2) with MSG_FASTOPEN": lambda p: socket.socket().sendto(b"x", _MSG_FASTOPEN, _tcp(p)),
    "mptcp: socket(2) of IPPROTO_MPTCP": _connecting(_tcp, protocol=_IPPROTO_MPTCP),
    "udp: sendto(2) over UDP": lambda p: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", _udp(p)),
    "udp-connected: connect(2) and send(2) over UDP": _connecting(_udp, kind=socket.SOCK_DGRAM),
    "unix: connect(2) to a named socket": _connecting(lambda p: p.stream, socket.AF_UNIX),
    "abstract: connect(2) to an abstract socket": _connecting(lambda p: f"\0{p.abstract}", socket.AF_UNIX),
    "pair-sendto: socketpair(2) and sendto(2) to a named socket": lambda p: _end().sendto(b"x", p.datagram),
    "pair-sendmsg: socketpair(2) and sendmsg(2) to a named socket": lambda p: _end().sendmsg(
        [b"x"], [], 0, p.datagram
    ),
    "pair-sendmmsg: socketpair(2) and sendmmsg(2) to a named socket": _pair_sendmmsg,
    "pair-connect: socketpair(2) and connect(2) to a named socket": _pair_connect,
    "pair-raw: socketpair(2) of SOCK_RAW": lambda p: _end(socket.SOCK_RAW).sendto(b"x", p.datagram),
    "pipe: a FIFO that somebody reads": lambda p: put(
        opened(f"{p.other}/pipe", os.O_WRONLY | os.O_NONBLOCK), b"x"
    ),
    "listen: listen(2) over TCP": (found_by(_listens), _listen),
}

_RIGHTS: Rows = {
    "linger: setsockopt(2) of SO_LINGER": (found_by(_lingers), _linger),
    "netlink: socket(2) of AF_NETLINK": _holding(_AF_NETLINK, socket.SOCK_RAW),
    "xfrm: socket(2) of AF_NETLINK with NETLINK_XFRM": _holding(_AF_NETLINK, socket.SOCK_RAW, _NETLINK_XFRM),
    "alg: socket(2) of AF_ALG": _holding(_AF_ALG, socket.SOCK_SEQPACKET),
    # Its protocol is the family of its transport.
    "rxrpc: socket(2) of AF_RXRPC": _holding(_AF_RXRPC, socket.SOCK_DGRAM, socket.AF_INET),
    "vsock: socket(2) of AF_VSOCK": _holding(_AF_VSOCK, socket.SOCK_STREAM),
    "packet: socket(2) of AF_PACKET": _holding(_AF_PACKET, socket.SOCK_RAW),
    "raw: socket(2) of SOCK_RAW": _holding(socket.AF_INET, socket.SOCK_RAW, 255),
    "ping: socket(2) of IPPROTO_ICMP": _holding(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP),
    "unshare: unshare(2), a user namespace": lambda _: call("unshare", _CLONE_NEWUSER),
    "clone: clone(2) with CLONE_NEWUSER": _cloned(
        lambda: call("clone", _CLONE_NEWUSER | signal.SIGCHLD, None, None, None, None)
    ),
    "clone3: clone3(2) with CLONE_NEWUSER": _cloned(
        lambda: call("clone3", struct.pack("=11Q", _CLONE_NEWUSER, 0, 0, 0, signal.SIGCHLD, *(0,) * 6), 88)
    ),
    "unshare-mounts: unshare(2), a mount namespace": (
        found_by(_differs("ns/mnt")),
        lambda _: call("unshare", _CLONE_NEWNS),
    ),
    "setns": (found_by(_differs("ns/uts")), _setns),
    "chroot": (found_by(_differs("root")), lambda p: os.chroot(p.home)),
    "personality": (found_by(_not_randomised), lambda _: call("personality", _ADDR_NO_RANDOMIZE)),
    "dumpable: prctl(2) PR_SET_DUMPABLE": (
        found_by(_hidden),
        lambda _: raised("prctl", libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)),
    ),
    "bpf": (
        found_by(has("bpf-map")),
        lambda _: call("bpf", 0, struct.pack("=IIIII", 2, 4, 4, 1, 0).ljust(72, b"\0"), 72),
    ),
    "userfault: userfaultfd(2)": (found_by(has("userfaultfd")), lambda _: call("userfaultfd", 1)),
}

TAMPERING = (
    *rows(AttemptKind.TAMPER, lambda world, _seen: world.stranger.signalled, _SIGNALS),
    *rows(AttemptKind.TAMPER, _reached, _SOCKETS),
    *rows(AttemptKind.TAMPER, found_by(_differs("ns/user")), _RIGHTS),
)
