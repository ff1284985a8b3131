"""Layer `seccomp`: the system calls that Landlock does not govern.

A deny list (`sandbox.layers.syscall_table`) with an upper bound: calls newer than the list fail with ENOSYS,
so a new kernel adds no way out. Two filters, built as bytes by pure functions and loaded with one call:

- `main_filter`, in a zygote before it loads the author's file, inherited by its workers;
- `worker_filter`, small, in a worker: nothing leaves its process group or outlives it.

Choices that are not obvious:

- Setting modes and times takes effect where the kernel itself restricts it to the user's own files: in a view
  of the file system in which all else is read-only; for times, also under a user id of one's own. Elsewhere
  homes share a user id with each other and with the operator's files, and Landlock governs neither call.
- Elsewhere, setting times fails with EPERM: a lock refreshed by its time must not appear to be. `shutil`
  continues without times (`sandbox.inside.sharing`). chmod returns success without effect, since shutil, git
  and zip fail otherwise. It has an effect only where packages are fetched, and never sets
  set-user-ID or set-group-ID bits: the files are on the machine's file system.
- Setting an ordinary policy of any thread, or one's own nice value, returns success without effect. A thread
  of little weight beside spinning ones could hold a kernel lock that the host waits for, unscheduled for
  seconds. libzmq sets each of its threads to the policy it already has, and aborts if that fails.
- Reading extended attributes by path fails with ENOTSUP, as on file systems without them, which every program
  that copies files handles: it would reveal attributes of unreadable files. Reading by descriptor works.
- clone3 fails with ENOSYS: its flags are in memory, which a filter cannot read. The C library falls
  back to clone, whose flags are in a register.
- The threads of a process share one descriptor table, so that the table of one shows the open files of all:
  a thread with a table of its own (clone without CLONE_FILES, CLOSE_RANGE_UNSHARE) is denied.
- timer_create fails with ENOSYS: such a timer can send SIGCONT, and so continue a stopped worker.
  alarm and setitimer have one fixed signal each, and no program needs more.
- setsid returns success without effect, so every descendant of a zygote has its session for life.
- A UNIX socket pair may be SOCK_STREAM or SOCK_SEQPACKET. A datagram socket, which SOCK_RAW creates
  as well, could send to any named socket of the machine.
- If a policy names reachable addresses, TCP sockets can be made, and `connect` asks the gate
  (`sandbox.network.gate`). No other use of an address is allowed: no bind, no listening, no
  Fast Open, no groups, and no protocol whose connect would be another call.
- If a policy allows sockets in the home, UNIX ones can be made, bound and listened on too. Landlock decides
  where a name can be bound, and the gate decides on the peer of a connection. Datagrams are never allowed,
  since the address of each message is in memory. A filter cannot tell a UNIX socket from another, so TCP
  sockets can listen as well: a worker's own are in a network without inbound routes, and the host's are
  connected before they are handed out.
- SO_LINGER is denied: a socket with it blocks the process that closes it last, which may be the
  host, to whom a worker can send any descriptor. Also denied are SO_PASSRIGHTS, by which the host rejects
  descriptors, and out-of-band data, whose descriptors no reader ever sees. A filter cannot see
  that a message carries descriptors, since its control data is in memory.
- Setting SO_SNDBUF returns success without effect: the memory of a socket counts as its default size.
- SO_ZEROCOPY and MSG_ZEROCOPY are denied: pages of a process would stay pinned until the peer has read them.
  So are SO_BINDTODEVICE and SO_BINDTOIFINDEX, which bypass the routes of the machine.
- The clock of another process, which tells its processor time, fails with EINVAL, as for a process that does
  not exist. A process names its own clock by a fixed id or by process id 0.
- PR_FUTEX_HASH is denied: such a table has up to a gigabyte of kernel memory, which no process limit counts.
- If Landlock cannot confine signals (below ABI 6), sending any signal is denied, except to
  one's own process group: a filter cannot tell a child from the host. Killing a subprocess then
  fails with EPERM, and abort() ends in SIGSEGV.

Source: seccomp(2), linux/filter.h, clone(2), unix(7); sandbox notes on the process tier.
"""

import errno
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sandbox.layers.syscall_table import (
    ATTRIBUTES,
    CHANGED_MODE,
    DENIED,
    NEWEST,
    SIGNALS,
    TIMES,
    Architecture,
    present_architecture,
)
from sandbox.syscalls import (
    PR_FUTEX_HASH,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    PR_SET_PDEATHSIG,
    PR_SET_PTRACER,
    seccomp_set_filter,
    seccomp_set_listening_filter,
)

__all__ = ["Filter", "main_filter", "supported_architecture", "worker_filter"]

_LOAD, _JUMP, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _JUMP_IF_ANY_BIT, _AND, _RETURN = (
    0x20, 0x05, 0x15, 0x35, 0x45, 0x54, 0x06,
)  # fmt: skip
# Offsets in struct seccomp_data; both architectures are little-endian.
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

_ALLOW = 0x7FFF_0000
_KILL = 0x8000_0000
_ERRNO = 0x0005_0000
_PRETEND = _ERRNO
_EPERM = _ERRNO | errno.EPERM
_EACCES = _ERRNO | errno.EACCES
_ENOTSUP = _ERRNO | errno.ENOTSUP
_EINVAL = _ERRNO | errno.EINVAL
_ASK = 0x7FC0_0000
_ENOSYS = _ERRNO | errno.ENOSYS
_ENOTTY = _ERRNO | errno.ENOTTY

# CLONE_PARENT would hand a child to the zygote's parent; the rest are the namespaces.
_CLONE_DENIED = 0x7E02_0000 | 0x8000
_CLONE_FILES, _CLONE_THREAD = 0x400, 0x10000
_CLOSE_RANGE_UNSHARE = 0x2
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_SOCK_STREAM, _SOCK_SEQPACKET = 1, 5
_SOCK_TYPE_MASK = 0xF
_ANY_PROTOCOL, _TCP = 0, 6
_MSG_FASTOPEN, _MSG_OOB, _MSG_ZEROCOPY = 0x2000_0000, 0x1, 0x400_0000
_SOL_SOCKET, _SO_SNDBUF = 1, 7
# SO_LINGER; SO_BINDTODEVICE and SO_BINDTOIFINDEX; SO_ZEROCOPY; programs on a socket: SO_ATTACH_FILTER, _BPF,
# _REUSEPORT_CBPF, _REUSEPORT_EBPF; SO_PASSRIGHTS.
_SOCKET_OPTIONS_DENIED = (13, 25, 62, 60, 26, 50, 51, 52, 83)
# TCP_ULP.
_TCP_OPTIONS_DENIED = (31,)
# Joining groups, which sends reports to the network even from a TCP socket: IP_ADD_MEMBERSHIP,
# IP_ADD_SOURCE_MEMBERSHIP; IPV6_JOIN_GROUP, IPV6_JOIN_ANYCAST; MCAST_JOIN_GROUP, _JOIN_SOURCE_GROUP.
_IP, _IPV6 = 0, 41
_IP_OPTIONS_DENIED = (35, 39, 42, 46)
_IPV6_OPTIONS_DENIED = (20, 27, 42, 46)
_SET_ID_BITS = 0o6000
_PRIO_PROCESS = 0
_MYSELF = 0
# SCHED_OTHER, SCHED_BATCH, SCHED_IDLE: none of them takes precedence over others.
_ORDINARY_POLICIES = (0, 3, 5)
_ALL_BUT_RESET_ON_FORK = 0xBFFF_FFFF
_PRCTLS_DENIED = (PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_PTRACER, PR_FUTEX_HASH)
# The clock of a process has its inverted id in the upper bits; of a thread, which the kernel restricts to
# one's own, this bit too. Process id 0 is the caller.
_CLOCKS = ("clock_gettime", "clock_getres", "clock_nanosleep")
_FIRST_CLOCK_OF_A_PROCESS, _FIRST_CLOCK_OF_MYSELF, _CLOCK_OF_A_THREAD = 0x8000_0000, 0xFFFF_FFF8, 0x4
# A descriptor's owner gets signals: FIOSETOWN and SIOCSPGRP here, F_SETOWN and F_SETOWN_EX below.
_IOCTLS_DENIED = (
    0x5412,  # TIOCSTI
    0x541C,  # TIOCLINUX
    0x8901,  # FIOSETOWN
    0x8902,  # SIOCSPGRP
    0x4008_6602,  # FS_IOC_SETFLAGS
    0x4004_6602,  # FS_IOC32_SETFLAGS
    0x401C_5820,  # FS_IOC_FSSETXATTR
    0x4008_7602,  # FS_IOC_SETVERSION
    0x4004_7602,  # FS_IOC32_SETVERSION
)
# So does a watcher of a folder (F_NOTIFY); a lease on a file (F_SETLEASE) keeps its owner from writing it.
# From Linux 6.19 on a folder can have one, too (F_SETDELEG).
_FCNTLS_DENIED = (8, 15, 1024, 1026, 1040)
# All of pidfs, which describes any process of the machine; all of btrfs, whose snapshots Landlock ignores,
# except cloning of files (FICLONE, FICLONERANGE and FIDEDUPERANGE).
_IOCTL_TYPE = 0xFF00
_IOCTL_TYPES_DENIED = (0xFF00, 0x9400)
_IOCTLS_OF_CLONING = (0x4004_9409, 0x4020_940D, 0xC018_9436)
# It creates a character device.
_RENAME_WHITEOUT = 0x4
# After the gate's end, a second filter with a listener could answer in its place.
_SECCOMP_NEW_LISTENER = 0x8
# Memory that grows downwards counts as stack, not as data, so it would evade the memory limit. Huge pages
# reserved by an operator (MAP_HUGETLB) are meant for other programs.
_MAP_DENIED = 0x100 | 0x4_0000

# Each Landlock ruleset can hold megabytes of kernel memory, which no process limit counts.
_ABSENT = ("clone3", "timer_create", "landlock_create_ruleset", "landlock_add_rule")
_ACCEPTING = ("bind", "listen", "accept", "accept4")
_OF_ANOTHER_PROCESS = (
    "prlimit64",
    "sched_setaffinity",
    "sched_setparam",
)


@dataclass(frozen=True, slots=True)
class Filter:
    """A BPF program, ready to load."""

    program: bytes

    def load(self) -> None:
        """Apply this filter to the calling thread and its descendants, irrevocably."""
        seccomp_set_filter(self.program)

    def load_asking(self) -> int:
        """Apply a filter with a gate to the thread; return the gate's notification descriptor."""
        return seccomp_set_listening_filter(supported_architecture().number("seccomp"), self.program)


def supported_architecture() -> Architecture:
    """Return the architecture of this process.

    Raises:
        OSError: The filter has no table for it.
    """
    found = present_architecture()
    if found is None:
        raise OSError(errno.ENOSYS, "no table of system calls for this architecture: x86_64 and aarch64 only")
    return found


def main_filter(
    architecture: Architecture,
    *,
    signals_are_scoped: bool,
    gated: bool = False,
    sockets: bool = False,
    times: bool = False,
    modes: bool = False,
) -> Filter:
    """Build the filter of a zygote.

    Args:
        architecture: The architecture whose call numbers are used.
        signals_are_scoped: Whether Landlock confines signals, so that they need no denial here.
        gated: Whether TCP sockets can be made, and `connect` asks a gate instead of being denied.
        sockets: Whether UNIX sockets can be made and listened at, and `connect` asks a gate.
        times: Whether times of files can be set, where the kernel allows it.
        modes: Whether modes of files can be set, where the kernel allows it.
    """
    number = architecture.number
    parts = [
        _entry(architecture),
        _answer([*map(number, _ABSENT)], _ENOSYS),
        _answer(architecture.known(DENIED), _EPERM),
        _answer(architecture.known(ATTRIBUTES), _ENOTSUP),
        *_modes(architecture, are_set=modes),
        *([] if times else [_answer(architecture.known(TIMES), _EPERM)]),
        _answer([number("setsid")], _PRETEND),
        _inspect(
            number("clone"),
            _deny_bits(0, _CLONE_DENIED, _EPERM) + _deny_without(0, _CLONE_THREAD, _CLONE_FILES, _EPERM),
        ),
        _inspect(number("close_range"), _deny_bits(2, _CLOSE_RANGE_UNSHARE, _EINVAL)),
        *(_inspect(n, _deny_unless(0, [_MYSELF], _EPERM)) for n in architecture.known(_OF_ANOTHER_PROCESS)),
        _inspect(
            number("sched_setscheduler"),
            _deny_values(1, _ORDINARY_POLICIES, _PRETEND, mask=_ALL_BUT_RESET_ON_FORK) + _return(_EPERM),
        ),
        _inspect(number("sched_setattr"), _deny_unless(0, [_MYSELF], _EPERM) + _return(_PRETEND)),
        _inspect(
            number("setpriority"),
            _deny_unless(0, [_PRIO_PROCESS], _EPERM) + _deny_unless(1, [_MYSELF], _EPERM) + _return(_PRETEND),
        ),
        _inspect(number("prctl"), _deny_values(0, _PRCTLS_DENIED, _EPERM)),
        *(_inspect(number(name), _deny_clocks_of_others(_EINVAL)) for name in _CLOCKS),
        _inspect(number("ioctl"), _deny_values(1, _IOCTLS_DENIED, _EPERM) + _ioctl_types()),
        _inspect(number("renameat2"), _deny_bits(4, _RENAME_WHITEOUT, _EPERM)),
        _inspect(number("seccomp"), _deny_bits(1, _SECCOMP_NEW_LISTENER, _EPERM)),
        _inspect(number("fcntl"), _deny_values(1, _FCNTLS_DENIED, _EPERM)),
        _inspect(number("mmap"), _deny_bits(3, _MAP_DENIED, _EPERM)),
        _network(architecture, gated=gated, sockets=sockets),
    ]
    if not signals_are_scoped:
        parts.append(_inspect(number("kill"), _deny_unless(0, [0], _EPERM)))
        parts.append(_answer(architecture.known(tuple(n for n in SIGNALS if n != "kill")), _EPERM))
    parts += [_jump(_JUMP_IF_AT_LEAST, NEWEST + 1, 0, 1), _return(_ENOSYS), _return(_ALLOW)]
    return Filter(b"".join(parts))


def worker_filter(architecture: Architecture) -> Filter:
    """Build the filter that a worker adds; the kernel runs both and takes the stricter result."""
    number = architecture.number
    parts = [
        _entry(architecture),
        _answer([number("setsid"), number("setpgid")], _PRETEND),
        _inspect(number("prctl"), _deny_values(0, [PR_SET_PDEATHSIG], _EPERM)),
        _return(_ALLOW),
    ]
    return Filter(b"".join(parts))


def _ioctl_types() -> bytes:
    body = _deny_values(1, _IOCTL_TYPES_DENIED, _ENOTTY, mask=_IOCTL_TYPE)
    for request in _IOCTLS_OF_CLONING:
        body = _unless_equal(1, request, body)
    return body


def _modes(architecture: Architecture, *, are_set: bool) -> list[bytes]:
    if not are_set:
        return [_answer(architecture.known(CHANGED_MODE), _PRETEND)]
    by_place = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2}
    return [
        _inspect(number, _deny_bits(place, _SET_ID_BITS, _EPERM))
        for name, place in by_place.items()
        for number in architecture.known((name,))
    ]


def _network(architecture: Architecture, *, gated: bool, sockets: bool) -> bytes:
    number = architecture.number
    connected = _deny_unless(1, [_SOCK_STREAM, _SOCK_SEQPACKET], _EACCES, mask=_SOCK_TYPE_MASK)
    parts = []
    if sockets:
        parts.append(_inspect(number("socket"), _if_equal(0, _AF_UNIX, connected + _return(_ALLOW))))
    else:
        parts.append(_answer(architecture.known(_ACCEPTING), _EACCES))
    parts.append(_gate(architecture) if gated else _answer([number("socket")], _EACCES))
    parts.append(_answer([number("connect")], _ASK if gated or sockets else _EACCES))
    return (
        b"".join(parts)
        + _inspect(number("socketpair"), _deny_unless(0, [_AF_UNIX], _EACCES) + connected)
        + _inspect(number("sendto"), _deny_pointer(4, _EACCES))
        + _inspect(
            number("setsockopt"),
            _if_equal(
                1,
                _SOL_SOCKET,
                _deny_values(2, _SOCKET_OPTIONS_DENIED, _EPERM) + _deny_values(2, [_SO_SNDBUF], _PRETEND),
            ),
        )
        + _flags_denied(architecture, _MSG_OOB | _MSG_ZEROCOPY, _EPERM)
    )


def _gate(architecture: Architecture) -> bytes:
    """Allow TCP sockets, which connect through the gate."""
    number = architecture.number
    tcp = (
        _deny_unless(0, [_AF_INET, _AF_INET6], _EACCES)
        + _deny_unless(1, [_SOCK_STREAM], _EACCES, mask=_SOCK_TYPE_MASK)
        + _deny_unless(2, [_ANY_PROTOCOL, _TCP], _EACCES)
    )
    denied = {
        _TCP: _TCP_OPTIONS_DENIED,
        _IP: _IP_OPTIONS_DENIED,
        _IPV6: _IPV6_OPTIONS_DENIED,
    }
    options = b"".join(_if_equal(1, level, _deny_values(2, names, _EPERM)) for level, names in denied.items())
    return (
        _inspect(number("socket"), tcp)
        + _inspect(number("setsockopt"), options)
        + _flags_denied(architecture, _MSG_FASTOPEN, _EACCES)
    )


def _flags_denied(architecture: Architecture, flags: int, action: int) -> bytes:
    """Return `action` for sends with any of the flags."""
    sending = {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}
    return b"".join(
        _inspect(architecture.number(name), _deny_bits(argument, flags, action))
        for name, argument in sending.items()
    )


# Every part begins and ends with the number of the call in the accumulator, so parts can be joined.


def _entry(architecture: Architecture) -> bytes:
    parts = [
        _operation(_LOAD, _ARCHITECTURE),
        _jump(_JUMP_IF_EQUAL, architecture.audit, 1, 0),
        _return(_KILL),
        _operation(_LOAD, _NUMBER),
    ]
    if architecture.foreign_bit:
        parts += [_jump(_JUMP_IF_AT_LEAST, architecture.foreign_bit, 0, 1), _return(_KILL)]
    return b"".join(parts)


def _answer(numbers: Sequence[int], action: int) -> bytes:
    """Return `action` for each of the calls."""
    return _matching(numbers, action)


def _inspect(number: int, body: bytes) -> bytes:
    """Run `body` for one call only."""
    inside = body + _operation(_LOAD, _NUMBER)
    return _jump(_JUMP_IF_EQUAL, number, 0, len(inside) // 8) + inside


def _deny_values(argument: int, values: Sequence[int], action: int, *, mask: int | None = None) -> bytes:
    masked = b"" if mask is None else _operation(_AND, mask)
    return _operation(_LOAD, _low_half(argument)) + masked + _matching(values, action)


def _deny_unless(argument: int, values: Sequence[int], action: int, *, mask: int | None = None) -> bytes:
    masked = b"" if mask is None else _operation(_AND, mask)
    # A match jumps to just behind the return.
    tests = (_jump(_JUMP_IF_EQUAL, value, len(values) - i, 0) for i, value in enumerate(values))
    return _operation(_LOAD, _low_half(argument)) + masked + b"".join(tests) + _return(action)


def _deny_bits(argument: int, bits: int, action: int) -> bytes:
    return _operation(_LOAD, _low_half(argument)) + _jump(_JUMP_IF_ANY_BIT, bits, 0, 1) + _return(action)


def _deny_without(argument: int, bit: int, needed: int, action: int) -> bytes:
    """Return `action` if `bit` is set and `needed` is not."""
    return (
        _operation(_LOAD, _low_half(argument))
        + _operation(_AND, bit | needed)
        + _jump(_JUMP_IF_EQUAL, bit, 0, 1)
        + _return(action)
    )


def _deny_clocks_of_others(action: int) -> bytes:
    return (
        _operation(_LOAD, _low_half(0))
        + _jump(_JUMP_IF_AT_LEAST, _FIRST_CLOCK_OF_MYSELF, 3, 0)
        + _jump(_JUMP_IF_AT_LEAST, _FIRST_CLOCK_OF_A_PROCESS, 0, 2)
        + _jump(_JUMP_IF_ANY_BIT, _CLOCK_OF_A_THREAD, 1, 0)
        + _return(action)
    )


def _if_equal(argument: int, value: int, body: bytes) -> bytes:
    """Run `body` if the argument has this value."""
    test = _jump(_JUMP_IF_EQUAL, value, 0, len(body) // 8)
    return _operation(_LOAD, _low_half(argument)) + test + body


def _unless_equal(argument: int, value: int, body: bytes) -> bytes:
    """Run `body` if the argument has another value."""
    return _operation(_LOAD, _low_half(argument)) + _jump(_JUMP_IF_EQUAL, value, len(body) // 8, 0) + body


def _deny_pointer(argument: int, action: int) -> bytes:
    """Return `action` unless the argument is a null pointer; both halves are tested."""
    low = _low_half(argument)
    return (
        _operation(_LOAD, low)
        + _jump(_JUMP_IF_EQUAL, 0, 0, 2)
        + _operation(_LOAD, low + 4)
        + _jump(_JUMP_IF_EQUAL, 0, 1, 0)
        + _return(action)
    )


def _matching(values: Sequence[int], action: int) -> bytes:
    tests: Iterable[bytes] = (
        _jump(_JUMP_IF_EQUAL, value, len(values) - i, 0) for i, value in enumerate(values)
    )
    return b"".join(tests) + _operation(_JUMP, 1) + _return(action)


def _low_half(argument: int) -> int:
    return _ARGUMENTS + 8 * argument


def _return(action: int) -> bytes:
    return _operation(_RETURN, action)


def _operation(code: int, value: int) -> bytes:
    return struct.pack("<HBBI", code, 0, 0, value)


def _jump(code: int, value: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)
