"""Attempts of kind `tamper` on sockets: reach somebody by the network, a named socket or a pipe.

Source: socket(7), unix(7), tcp(7), udp(7), netlink(7), packet(7), raw(7), socketpair(2), fifo(7).
"""

import ctypes
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from sandbox.selftest.attempt import Act, ActEvidence, Attempt, AttemptNeed, Surroundings, tampering
from sandbox.selftest.calls import call
from sandbox.selftest.gaining import gain
from sandbox.selftest.world import World

__all__ = ["REACHING"]

_AT_CWD = -100
_MSG_FASTOPEN = 0x2000_0000
_IPPROTO_MPTCP = 262
_AF_NETLINK, _AF_PACKET, _AF_RXRPC, _AF_ALG, _AF_VSOCK = 16, 17, 33, 38, 40
_NETLINK_XFRM = 6
_SO_PROTOCOL, _SO_DOMAIN = 38, 39
_LINGER = struct.Struct("2i")


def _reached(world: World, _seen: ActEvidence) -> bool:
    return world.reached()


def _has_socket(protocol: str) -> Callable[[World, int], bool]:
    """Return what says whether a process has a socket of a family, by the kernel's list of them."""

    def during(_world: World, pid: int) -> bool:
        # As the process sees it: in a network of its own, its sockets are in no other list.
        lines = Path(f"/proc/{pid}/net/{protocol}").read_text().splitlines()
        known = {word for line in lines[1:] for word in line.split()}
        links = (os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd"))
        return any(link.startswith("socket:") and link[8:-1] in known for link in links)

    return during


def _listens(world: World, _pid: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", world.place.free_port), timeout=2).close()
    except OSError:
        return False
    return True


def _sockets_of(pid: int) -> Iterator[socket.socket]:
    """Yield a duplicate of each socket of a process, which is closed before the next is taken."""
    process = os.pidfd_open(pid)
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            if os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                # Family and type are given: some families have no address to be asked for.
                taken = call("pidfd_getfd", process, int(name), 0)
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, taken) as end:
                    yield end
    finally:
        os.close(process)


def _lingers(_world: World, pid: int) -> bool:
    """Return whether a socket of a process delays the last process that closes it."""
    options = (end.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER.size) for end in _sockets_of(pid))
    return any(_LINGER.unpack(option)[1] for option in options)


def _has_socket_of(family: int, protocol: int) -> Callable[[World, int], bool]:
    """Return an oracle for a socket of a family and protocol, as the kernel reports them of the socket."""

    def during(_world: World, pid: int) -> bool:
        found = (
            (end.getsockopt(socket.SOL_SOCKET, _SO_DOMAIN), end.getsockopt(socket.SOL_SOCKET, _SO_PROTOCOL))
            for end in _sockets_of(pid)
        )
        return (family, protocol) in found

    return during


def _linger(place: Surroundings) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER.pack(1, 3600))
        place.hold()


def _tcp(place: Surroundings) -> None:
    socket.create_connection(("127.0.0.1", place.port), timeout=2).close()


def _fast_open(place: Surroundings) -> None:
    with socket.socket() as client:
        client.sendto(b"x", _MSG_FASTOPEN, ("127.0.0.1", place.port))


def _multipath(place: Surroundings) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, _IPPROTO_MPTCP) as client:
        client.connect(("127.0.0.1", place.port))


def _tcp_six(place: Surroundings) -> None:
    with socket.socket(socket.AF_INET6) as client:
        client.connect(("::ffff:127.0.0.1", place.port))


def _udp(place: Surroundings) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as client:
        client.sendto(b"x", ("127.0.0.1", place.datagram_port))


def _udp_connected(place: Surroundings) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as client:
        client.connect(("127.0.0.1", place.datagram_port))
        client.send(b"x")


def _listen(place: Surroundings) -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", place.free_port))
        server.listen()
        place.hold()


def _unix(place: Surroundings) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(place.stream)


def _abstract(place: Surroundings) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"\0{place.abstract}")


def _pair(kind: int) -> Callable[[], socket.socket]:
    return lambda: socket.socketpair(socket.AF_UNIX, kind)[0]


def _pair_sendto(place: Surroundings) -> None:
    _pair(socket.SOCK_DGRAM)().sendto(b"x", place.datagram)


def _pair_sendmsg(place: Surroundings) -> None:
    _pair(socket.SOCK_DGRAM)().sendmsg([b"x"], [], 0, place.datagram)


def _pair_connect(place: Surroundings) -> None:
    ours = _pair(socket.SOCK_DGRAM)()
    ours.connect(place.datagram)
    ours.send(b"x")


def _raw_pair(place: Surroundings) -> None:
    _pair(socket.SOCK_RAW)().sendto(b"x", place.datagram)


def _pair_sendmmsg(place: Surroundings) -> None:
    name = ctypes.create_string_buffer(struct.pack("=H", socket.AF_UNIX) + place.datagram.encode() + b"\0")
    data = ctypes.create_string_buffer(b"x")
    vector = ctypes.create_string_buffer(struct.pack("=QQ", ctypes.addressof(data), 1))
    header = struct.pack(
        "=QIxxxxQQQQixxxxIxxxx",
        ctypes.addressof(name),
        len(name) - 1,
        ctypes.addressof(vector),
        1,
        0,
        0,
        0,
        0,
    )
    ours = _pair(socket.SOCK_DGRAM)()
    call("sendmmsg", ours.fileno(), bytearray(header), 1, 0)


def _pipe(place: Surroundings) -> None:
    path = f"{place.other}/pipe".encode()
    os.write(call("openat", _AT_CWD, path, os.O_WRONLY | os.O_NONBLOCK, 0), b"x")


def _holding(family: int, kind: int, protocol: int = 0, address: tuple[object, ...] | None = None) -> Act:
    def act(place: Surroundings) -> None:
        with socket.socket(family, kind, protocol) as held:
            if address is not None:
                # Some are in the kernel's lists only when they are bound.
                held.bind(address)
            place.hold()

    return act


def _reach(name: str, technique: str, act: Act) -> Attempt:
    return tampering(name, technique, act, _reached, AttemptNeed.SOCKETS)


REACHING: tuple[Attempt, ...] = (
    _reach("tcp", "connect(2) over TCP", _tcp),
    _reach("tcp6", "connect(2) over TCP, by an address of IPv6", _tcp_six),
    _reach("fast-open", "sendto(2) with MSG_FASTOPEN", _fast_open),
    _reach("mptcp", "socket(2) of IPPROTO_MPTCP", _multipath),
    _reach("udp", "sendto(2) over UDP", _udp),
    _reach("udp-connected", "connect(2) and send(2) over UDP", _udp_connected),
    _reach("unix", "connect(2) to a named socket", _unix),
    _reach("abstract", "connect(2) to an abstract socket", _abstract),
    _reach("pair-sendto", "socketpair(2) and sendto(2) to a named socket", _pair_sendto),
    _reach("pair-sendmsg", "socketpair(2) and sendmsg(2) to a named socket", _pair_sendmsg),
    _reach("pair-sendmmsg", "socketpair(2) and sendmmsg(2) to a named socket", _pair_sendmmsg),
    _reach("pair-connect", "socketpair(2) and connect(2) to a named socket", _pair_connect),
    _reach("pair-raw", "socketpair(2) of SOCK_RAW", _raw_pair),
    _reach("pipe", "a FIFO that somebody reads", _pipe),
    gain("linger", "setsockopt(2) of SO_LINGER", _linger, _lingers),
    gain("listen", "listen(2) over TCP", _listen, _listens, AttemptNeed.SOCKETS),
    gain(
        "netlink",
        "socket(2) of AF_NETLINK",
        _holding(_AF_NETLINK, socket.SOCK_RAW, 0, (0, 0)),
        _has_socket("netlink"),
    ),
    gain(
        "xfrm",
        "socket(2) of AF_NETLINK with NETLINK_XFRM",
        _holding(_AF_NETLINK, socket.SOCK_RAW, _NETLINK_XFRM),
        _has_socket_of(_AF_NETLINK, _NETLINK_XFRM),
    ),
    gain("alg", "socket(2) of AF_ALG", _holding(_AF_ALG, socket.SOCK_SEQPACKET), _has_socket_of(_AF_ALG, 0)),
    gain(
        "rxrpc",
        "socket(2) of AF_RXRPC",
        # Its protocol is the family that it is carried over.
        _holding(_AF_RXRPC, socket.SOCK_DGRAM, socket.AF_INET),
        _has_socket_of(_AF_RXRPC, socket.AF_INET),
    ),
    gain(
        "vsock",
        "socket(2) of AF_VSOCK",
        _holding(_AF_VSOCK, socket.SOCK_STREAM),
        _has_socket_of(_AF_VSOCK, 0),
    ),
    gain("packet", "socket(2) of AF_PACKET", _holding(_AF_PACKET, socket.SOCK_RAW), _has_socket("packet")),
    gain("raw", "socket(2) of SOCK_RAW", _holding(socket.AF_INET, socket.SOCK_RAW, 255), _has_socket("raw")),
    gain(
        "ping",
        "socket(2) of IPPROTO_ICMP",
        _holding(socket.AF_INET, socket.SOCK_DGRAM, 1, ("127.0.0.1", 0)),
        _has_socket("icmp"),
    ),
)
