"""The gate: real sockets, a real filter, and a child that tries to get past it."""

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import ipaddress
import json
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from sandbox.layers import identity
from sandbox.layers.privileges import refuse_new_privileges
from sandbox.layers.seccomp import main_filter, supported_architecture
from sandbox.loop_share import LoopShare
from sandbox.network.destinations import Destinations
from sandbox.network.egress import Egress
from sandbox.network.gate import Address, Gate, address_of

NOBODY = 65534

Act = Callable[[], object]
"""Function run by a child, which sends its result as JSON."""

Said = list[str | None]
"""Outcomes of attempts without a result: None for success, or the name of the error."""

T = TypeVar("T")


@contextmanager
def listening(
    family: socket.AddressFamily = socket.AF_INET, host: str = "127.0.0.1"
) -> Iterator[tuple[socket.socket, Address]]:
    with socket.create_server((host, 0), family=family) as server:
        yield server, server.getsockname()[:2]


@contextmanager
def answering(server: socket.socket, text: bytes) -> Iterator[None]:
    def answer() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(4)
            connection.sendall(text)

    thread = threading.Thread(target=answer)
    thread.start()
    yield
    thread.join()


def of_our_group(gate: Gate) -> list[str]:
    return gate.refused(os.getpgid(0))


def in_gated_child(
    act: Act,
    allowed: Collection[Address],
    *,
    uid: int | None = None,
    rules: Collection[str] = (),
    sockets: Path | None = None,
) -> tuple[Any, list[str]]:
    """Run `act` behind a gate in a child; return what it said, and what the gate refused (`behind_gate`)."""
    return behind_gate(act, allowed, of_our_group, uid=uid, rules=rules, sockets=sockets)


def behind_gate(
    act: Act,
    allowed: Collection[Address],
    look: Callable[[Gate], T],
    *,
    uid: int | None = None,
    rules: Collection[str] = (),
    sockets: Path | None = None,
    share: LoopShare | None = None,
) -> tuple[Any, T]:
    """Run `act` behind a gate in a child; return what it said, and what is then known of the gate.

    Args:
        act: What the child does.
        allowed: Addresses that are reached.
        look: What to know of the gate afterwards.
        uid: User that the child is.
        rules: Destinations that are reached beside them.
        sockets: The home, where UNIX sockets are allowed in it.
        share: Event loop time of the child.
    """
    share = share or LoopShare()
    ours, theirs = socket.socketpair()
    reader, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            ours.close()
            if uid is not None and os.geteuid() == 0:
                identity.apply(uid)
            refuse_new_privileges()
            architecture, has_sockets = supported_architecture(), sockets is not None
            program = main_filter(architecture, signals_are_scoped=True, gated=True, sockets=has_sockets)
            listener = program.load_asking()
            socket.send_fds(theirs, [b"gate"], [listener])
            os.close(listener)
            os.write(tell, json.dumps(act()).encode())
        except BaseException as error:  # noqa: BLE001 - the child must not go on as the test
            os.write(tell, json.dumps(repr(error)).encode())
        finally:
            os._exit(0)
    theirs.close()
    os.close(tell)

    async def answer() -> tuple[bytes, T]:
        _, (listener,), _, _ = socket.recv_fds(ours, 16, 1)
        exits = Egress(reach=frozenset(allowed), destinations=Destinations.parse(rules), share=share)
        gate = Gate(listener=listener, ways=exits, share=share, sockets=sockets)
        try:
            return await asyncio.to_thread(os.read, reader, 65536), look(gate)
        finally:
            gate.close()
            exits.close()

    try:
        answered, refused = asyncio.run(answer())
        return json.loads(answered), refused
    finally:
        os.waitpid(child, 0)
        os.close(reader)
        ours.close()
        threads_ended()


def threads_ended() -> None:
    """Wait for the threads of closed gates: who forks next shall be alone."""
    for thread in threading.enumerate():
        if thread.name == "gate":
            thread.join()


def source_of(server: socket.socket) -> str:
    connection, (source, _) = server.accept()
    connection.close()
    return str(source)


def attempt(act: Callable[[], T]) -> T | str:
    """Return what `act` returns, or the name of its error."""
    try:
        return act()
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def test_the_one_address_is_reached_and_carries_data_both_ways() -> None:
    def act() -> list[object]:
        with socket.create_connection(here, timeout=120) as connection:
            peer = list(connection.getpeername())
            connection.sendall(b"ping")
            return [connection.recv(4).decode(), peer]

    with listening() as (server, here), answering(server, b"pong"):
        reply, refused = in_gated_child(act, {here})

    assert reply == ["pong", list(here)]
    assert refused == []


def test_an_unprivileged_process_is_let_through_as_well() -> None:
    def act() -> str | None:
        with socket.socket() as mine:
            return attempt(lambda: mine.connect(here))

    with listening() as (_, here):
        reply, _ = in_gated_child(act, {here}, uid=NOBODY)

    assert reply is None


def test_another_port_is_refused_although_somebody_listens_there() -> None:
    with listening() as (_, here), listening() as (_, other):
        reply, refused = in_gated_child(lambda: attempt(lambda: socket.create_connection(other)), {here})
        control = socket.create_connection(other)

    control.close()
    assert reply == "EACCES"
    assert refused == [f"127.0.0.1:{other[1]}"]


def test_another_address_of_the_same_port_is_refused() -> None:
    with listening(host="0.0.0.0") as (_, (_, port)):
        reply, _ = in_gated_child(
            lambda: attempt(lambda: socket.create_connection(("127.0.0.2", port))), {("127.0.0.1", port)}
        )

    assert reply == "EACCES"


def test_ipv4_mapped_ipv6_address_equals_its_ipv4_address() -> None:
    def act() -> Said:
        with socket.socket(socket.AF_INET6) as mine:
            return [
                attempt(partial(mine.connect, (f"::ffff:{host}", here[1])))
                for host in ("127.0.0.1", "127.0.0.2")
            ]

    with listening() as (_, here):
        reply, _ = in_gated_child(act, {here})

    assert reply == [None, "EACCES"]


@pytest.mark.parametrize(
    ("family", "kind", "protocol"),
    [
        (socket.AF_INET, socket.SOCK_DGRAM, 0),
        (socket.AF_INET6, socket.SOCK_DGRAM, 0),
        (socket.AF_INET, socket.SOCK_RAW, 1),
        (socket.AF_INET, socket.SOCK_STREAM, 262),
        (socket.AF_INET, socket.SOCK_STREAM, 132),
        (socket.AF_UNIX, socket.SOCK_STREAM, 0),
        (socket.AF_NETLINK, socket.SOCK_RAW, 0),
        (socket.AF_PACKET, socket.SOCK_RAW, 0),
        (40, socket.SOCK_STREAM, 0),
    ],
)
def test_no_other_kind_of_socket_can_be_made(family: int, kind: int, protocol: int) -> None:
    reply, _ = in_gated_child(lambda: attempt(lambda: socket.socket(family, kind, protocol).close()), set())

    assert reply == "EACCES"


EVERYTHING = ("*", "0.0.0.0/0", "[::/0]", *(f":{port}" for port in (53, 80, 443)))


def unprotected(act: Act) -> Any:
    """Run `act` in a child without any filter; return what it said."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, json.dumps(act()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = json.loads(pipe.read())
    os.waitpid(child, 0)
    return answer


def test_with_everything_allowed_no_datagram_leaves() -> None:
    def act() -> Said:
        return [attempt(partial(send, family)) for family in (socket.AF_INET, socket.AF_INET6)]

    def send(family: socket.AddressFamily) -> None:
        with socket.socket(family, socket.SOCK_DGRAM) as mine:
            mine.sendto(b"out", there[family])

    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as four,
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as six,
    ):
        four.bind(("127.0.0.1", 0))
        six.bind(("::1", 0))
        there = {socket.AF_INET: four.getsockname(), socket.AF_INET6: six.getsockname()}
        for ours in (four, six):
            ours.settimeout(120)

        assert unprotected(act) == [None, None]
        assert [ours.recv(10) for ours in (four, six)] == [b"out", b"out"]
        reply, _ = in_gated_child(act, set(), rules=EVERYTHING)

        for ours in (four, six):
            ours.settimeout(0)
            with pytest.raises(BlockingIOError):
                ours.recv(10)
    assert reply == ["EACCES", "EACCES"]


def test_with_everything_allowed_no_unix_socket_is_reached(tmp_path: Path) -> None:
    def act() -> Said:
        return [attempt(partial(reach, address)) for address in addresses]

    def reach(address: str) -> None:
        with socket.socket(socket.AF_UNIX) as mine:
            mine.connect(address)

    addresses = [str(tmp_path / "there"), f"\0there-{os.getpid()}"]
    with socket.socket(socket.AF_UNIX) as by_path, socket.socket(socket.AF_UNIX) as abstract:
        for ours, address in zip((by_path, abstract), addresses, strict=True):
            ours.bind(address)
            ours.listen()
            ours.settimeout(120)

        assert unprotected(act) == [None, None]
        for ours in (by_path, abstract):
            ours.accept()[0].close()
        reply, _ = in_gated_child(act, set(), rules=EVERYTHING)

        for ours in (by_path, abstract):
            ours.settimeout(0)
            with pytest.raises(BlockingIOError):
                ours.accept()
    assert reply == ["EACCES", "EACCES"]


def test_allow_all_permits_no_protocol_but_tcp() -> None:
    protocols = [(socket.SOCK_STREAM, 262), (socket.SOCK_RAW, socket.IPPROTO_ICMP), (socket.SOCK_DGRAM, 0)]

    def act() -> Said:
        return [attempt(partial(make, kind, protocol)) for kind, protocol in protocols]

    def make(kind: int, protocol: int) -> None:
        socket.socket(socket.AF_INET, kind, protocol).close()

    # A kernel without MPTCP says so; it is never the filter that does.
    assert set(unprotected(act)) <= {None, "EPROTONOSUPPORT", "EPERM"}
    reply, _ = in_gated_child(act, set(), rules=EVERYTHING)

    assert reply == ["EACCES"] * 3


def test_allow_all_does_not_let_fast_open_bypass_the_gate() -> None:
    def act() -> int | str:
        with socket.socket() as mine:
            return attempt(lambda: mine.sendto(b"x", 0x20000000, here))

    with listening() as (server, here):
        server.settimeout(120)

        assert unprotected(act) == 1
        server.accept()[0].close()
        reply, _ = in_gated_child(act, set(), rules=EVERYTHING)

        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert reply == "EACCES"


def test_nonblocking_socket_connects_without_waiting() -> None:
    def act() -> list[object]:
        with socket.socket() as mine:
            mine.setblocking(False)
            started = attempt(lambda: mine.connect(here))
            os.write(tell, b".")
            select.select([], [mine], [], 120)
            return [started, mine.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), list(mine.getpeername())]

    reader, tell = os.pipe()
    with socket.socket() as server, contextlib.ExitStack() as stack:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        here = server.getsockname()
        # Full: the kernel leaves further connections without an answer until one is taken.
        stack.enter_context(socket.create_connection(here))

        def take() -> None:
            os.read(reader, 1)
            for _ in range(2):
                stack.enter_context(server.accept()[0])

        taker = threading.Thread(target=take)
        taker.start()
        reply, _ = in_gated_child(act, {here})
        taker.join()

    os.close(reader)
    os.close(tell)
    assert reply == ["EINPROGRESS", 0, list(here)]


def test_fast_open_does_not_go_round_the_gate() -> None:
    def act() -> list[int | str | None]:
        with socket.socket() as mine:
            by_name = attempt(lambda: mine.sendto(b"x", 0x20000000, here))
            by_message = attempt(lambda: mine.sendmsg([b"x"], [], 0x20000000, here))
            plain = attempt(lambda: mine.sendmsg([b"x"], [], socket.MSG_NOSIGNAL, here))
        with socket.socket() as mine:
            mine.setsockopt(socket.IPPROTO_TCP, 30, 1)
            deferred = attempt(lambda: mine.connect(here))
        return [by_name, by_message, plain, deferred]

    with listening() as (server, here):
        server.settimeout(0)

        reply, _ = in_gated_child(act, set())

        with pytest.raises(BlockingIOError):
            server.accept()
    assert reply == ["EACCES", "EACCES", "EPIPE", "EACCES"]


def test_socket_cannot_listen() -> None:
    def act() -> Said:
        with socket.socket() as mine:
            return [attempt(lambda: mine.bind(("127.0.0.1", 0))), attempt(mine.listen)]

    reply, _ = in_gated_child(act, set())

    assert reply == ["EACCES", "EACCES"]


def test_socket_options_for_zero_copy_and_devices_are_denied() -> None:
    loopback = struct.pack("i", socket.if_nametoindex("lo"))

    def act() -> Said:
        with socket.socket() as mine:
            return [
                attempt(partial(mine.setsockopt, socket.SOL_SOCKET, option, value))
                for option, value in ((60, struct.pack("i", 1)), (25, b"lo"), (62, loopback))
            ]

    assert unprotected(act) == [None, None, None]
    reply, _ = in_gated_child(act, set())

    assert reply == ["EPERM", "EPERM", "EPERM"]


def test_zero_copy_flag_of_every_sending_call_is_denied() -> None:
    zero_copy = 0x4000000

    def act() -> list[int | str]:
        with socket.create_connection(here) as mine:
            return [
                attempt(lambda: mine.send(b"x", zero_copy)),
                attempt(lambda: mine.sendmsg([b"x"], [], zero_copy)),
                attempt(lambda: mine.sendmsg([b"x"], [], socket.MSG_NOSIGNAL)),
            ]

    with listening() as (_, here):
        assert unprotected(act) == [1, 1, 1]
        reply, _ = in_gated_child(act, {here})

    assert reply == ["EPERM", "EPERM", 1]


def test_no_filter_program_can_be_put_on_a_socket() -> None:
    def act() -> Said:
        with socket.socket() as mine:
            one_instruction = struct.pack("HL", 1, 0)
            options = [(socket.SOL_SOCKET, 26), (socket.SOL_SOCKET, 50), (socket.IPPROTO_TCP, 31)]
            denied = [attempt(partial(mine.setsockopt, *option, one_instruction)) for option in options]
            mine.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return denied

    reply, _ = in_gated_child(act, set())

    assert reply == ["EPERM", "EPERM", "EPERM"]


def test_address_changed_by_other_thread_leads_nowhere_else() -> None:
    def act() -> list[int]:
        good = struct.pack("=H", socket.AF_INET) + struct.pack(">H4s8x", here[1], bytes([127, 0, 0, 1]))
        bad = struct.pack("=H", socket.AF_INET) + struct.pack(">H4s8x", other[1], bytes([127, 0, 0, 1]))
        address = ctypes.create_string_buffer(good, 16)
        done = threading.Event()

        def swap() -> None:
            while not done.is_set():
                ctypes.memmove(address, bad, 16)
                ctypes.memmove(address, good, 16)

        threading.Thread(target=swap, daemon=True).start()
        libc = ctypes.CDLL(None, use_errno=True)
        reached = set()
        for _ in range(300):
            with socket.socket() as mine:
                if libc.connect(mine.fileno(), address, 16) == 0:
                    reached.add(mine.getpeername()[1])
        done.set()
        return sorted(reached)

    with listening() as (server, here), listening() as (trap, other):
        server.listen(400)
        trap.settimeout(0)

        reply, refused = in_gated_child(act, {here})

        with pytest.raises(BlockingIOError):
            trap.accept()
    assert reply == [here[1]]
    assert set(refused) <= {f"127.0.0.1:{other[1]}"}


def test_gated_process_cannot_install_its_own_gate() -> None:
    def act() -> int | str:
        program = main_filter(supported_architecture(), signals_are_scoped=True, gated=True)
        return attempt(program.load_asking)

    reply, _ = in_gated_child(act, set())

    assert reply == "EPERM"


def test_a_child_process_is_behind_the_same_gate() -> None:
    def connect(address: Address) -> None:
        socket.create_connection(address).close()

    def act() -> object:
        read, write = os.pipe()
        if os.fork() == 0:
            answers = [attempt(partial(connect, address)) for address in (here, other)]
            os.write(write, json.dumps(answers).encode())
            os._exit(0)
        os.wait()
        return json.loads(os.read(read, 1000))

    with listening() as (_, here), listening() as (_, other):
        reply, _ = in_gated_child(act, {here})

    assert reply == [None, "EACCES"]


def test_nonblocking_socket_stays_nonblocking() -> None:
    def act() -> list[object]:
        with socket.socket() as mine:
            mine.setblocking(False)
            mine.connect(here)
            return [attempt(lambda: mine.recv(1)), os.get_inheritable(mine.fileno())]

    with listening() as (_, here):
        reply, _ = in_gated_child(act, {here})

    assert reply == ["EAGAIN", False]


def test_repeated_attempts_are_refused_and_100_are_recorded() -> None:
    def act() -> Said:
        def knock() -> None:
            for _ in range(30):
                with socket.socket() as mine:
                    answers.append(attempt(lambda: mine.connect(other)))

        answers: Said = []
        threads = [threading.Thread(target=knock) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    with listening() as (_, other):
        reply, refused = in_gated_child(act, set())

    assert reply == ["EACCES"] * 240
    assert len(refused) == 100


def test_waiters_above_gate_parallelism_are_all_answered() -> None:
    def act() -> int:
        def knock() -> None:
            with socket.socket() as mine:
                answers.append(attempt(lambda: mine.connect(other)))

        answers: Said = []
        threads = [threading.Thread(target=knock) for _ in range(250)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(answers)

    with listening() as (_, other):
        reply, _ = in_gated_child(act, set())

    assert reply == 250


def test_gate_without_supervisor_reaches_nothing() -> None:
    read, write = os.pipe()
    with listening() as (_, here), os.fdopen(read) as pipe:
        if os.fork() == 0:
            refuse_new_privileges()
            program = main_filter(supported_architecture(), signals_are_scoped=True, gated=True)
            os.close(program.load_asking())
            os.write(write, str(attempt(lambda: socket.create_connection(here))).encode())
            os._exit(0)
        os.close(write)

        answer = pipe.read()

        os.wait()
    assert answer == "ENOSYS"


@pytest.mark.parametrize("pointer", [0, 8, 2**47, 2**63, 2**64 - 1])
def test_unmapped_address_argument_is_efault(pointer: int) -> None:
    def act() -> Said:
        libc = ctypes.CDLL(None, use_errno=True)
        with socket.socket() as mine:
            failed = libc.connect(mine.fileno(), ctypes.c_void_p(pointer), 16)
            number = ctypes.get_errno() if failed else 0
            return [errno.errorcode[number], attempt(lambda: mine.connect(here))]

    with listening() as (_, here):
        reply, refused = in_gated_child(act, {here})

    assert reply == ["EFAULT", None]
    assert refused == []


def test_closed_descriptor_argument_is_ebadf() -> None:
    def act() -> Said:
        libc = ctypes.CDLL(None, use_errno=True)
        address = struct.pack("=H", socket.AF_INET) + struct.pack(">H4s8x", here[1], bytes([127, 0, 0, 1]))
        answers = []
        for descriptor in (-1, 1000, 2**31 - 1):
            failed = libc.connect(descriptor, address, 16)
            answers.append(errno.errorcode[ctypes.get_errno()] if failed else None)
        return answers

    with listening() as (_, here):
        reply, _ = in_gated_child(act, {here})

    assert reply == ["EBADF"] * 3


def test_lock_waits_of_requesters_never_run_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[int] = set()
    real_call, real_read = fcntl.ioctl, os.pread

    def call(descriptor: int, request: int, data: bytes | bytearray) -> int | bytes:
        used.add(threading.get_ident())
        return real_call(descriptor, request, data)

    def read(descriptor: int, length: int, offset: int) -> bytes:
        used.add(threading.get_ident())
        return real_read(descriptor, length, offset)

    def act() -> Said:
        with socket.socket() as mine:
            return [attempt(partial(mine.connect, address)) for address in (other, here)]

    monkeypatch.setattr(fcntl, "ioctl", call)
    monkeypatch.setattr(os, "pread", read)
    with listening() as (_, here), listening() as (_, other):
        reply, _ = in_gated_child(act, {here})

    assert reply == ["EACCES", None]
    assert len(used) == 1
    assert threading.get_ident() not in used


def test_gate_without_requesters_makes_no_kernel_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received: list[int] = []
    real = fcntl.ioctl

    def call(descriptor: int, request: int, data: bytes | bytearray) -> int | bytes:
        received.append(request)
        return real(descriptor, request, data)

    async def until_it_knows(listener: int) -> None:
        gate = Gate(listener=listener, ways=Egress(share=LoopShare()), share=LoopShare())
        while not waits_in_poll():
            await asyncio.sleep(0)
        gate.close()

    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        refuse_new_privileges()
        program = main_filter(supported_architecture(), signals_are_scoped=True, gated=True)
        socket.send_fds(theirs, [b"gate"], [program.load_asking()])
        os._exit(0)
    with ours, theirs:
        _, (listener,), _, _ = socket.recv_fds(ours, 16, 1)
        os.waitpid(child, 0)
        monkeypatch.setattr(fcntl, "ioctl", call)

        asyncio.run(until_it_knows(listener))

        threads_ended()
    assert received == []


def waits_in_poll() -> bool:
    """Return whether the gate's thread is in poll(2), which no call for the listener ends any more."""
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "gate")
    number = Path(f"/proc/self/task/{thread.native_id}/syscall").read_text().split()[0]
    return number == {"x86_64": "7", "aarch64": "73"}[os.uname().machine]


@pytest.mark.release
def test_groups_without_number_are_not_remembered_without_end() -> None:
    def act() -> object:
        groups = []
        for _ in range(270):
            child = os.fork()
            if child == 0:
                os.setpgid(0, 0)
                attempt(lambda: socket.create_connection(other))
                os._exit(0)
            os.waitpid(child, 0)
            groups.append(child)
        return groups

    with listening() as (_, other):
        groups, gate = behind_gate(act, set(), lambda gate: gate)

    remembered = [gate.refused(group) for group in groups]
    assert remembered == [[]] * 14 + [[f"127.0.0.1:{other[1]}"]] * 256


def test_loopback_listener_can_distinguish_two_gates() -> None:
    def act() -> Said:
        with socket.socket() as first, socket.socket() as second:
            return [attempt(partial(mine.connect, here)) for mine in (first, second)]

    with listening() as (server, here):
        answers = [in_gated_child(act, {here})[0] for _ in range(2)]
        sources = [source_of(server) for _ in range(4)]

    assert answers == [[None, None]] * 2
    assert sources[0] == sources[1] != sources[2] == sources[3]
    assert all(ipaddress.ip_address(source).is_loopback for source in sources)


def test_no_group_of_the_network_can_be_joined() -> None:
    def act() -> Said:
        return [attempt(partial(joined, *join)) for join in joins]

    def joined(family: socket.AddressFamily, level: int, option: int, value: bytes) -> None:
        with socket.socket(family) as mine:
            mine.setsockopt(level, option, value)

    lo = struct.pack("=I4x", socket.if_nametoindex("lo"))
    four = struct.pack("=H2x4s", socket.AF_INET, bytes([239, 1, 2, 3])).ljust(128, b"\0")
    six = struct.pack("=H6x16s", socket.AF_INET6, socket.inet_pton(socket.AF_INET6, "ff02::1234"))
    joins = [
        (socket.AF_INET, socket.IPPROTO_IP, 42, lo + four),
        (socket.AF_INET6, socket.IPPROTO_IP, 42, lo + four),
        (socket.AF_INET6, socket.IPPROTO_IPV6, 42, lo + six.ljust(128, b"\0")),
    ]

    reply, _ = in_gated_child(act, set())

    assert reply == ["EPERM"] * 3
    assert act() == [None] * 3


@pytest.mark.parametrize(
    "raw",
    [b"", b"\x02", struct.pack("=H14x", socket.AF_UNIX), struct.pack("=H14x", socket.AF_UNSPEC),
     struct.pack("=H14x", socket.AF_INET6)],
)  # fmt: skip
def test_invalid_ip_address_is_none(raw: bytes) -> None:
    assert address_of(raw) is None


@contextmanager
def silent() -> Iterator[Address]:
    """An address where connections are never answered: the queue of who listens is full."""
    with socket.socket() as server, contextlib.ExitStack() as stack:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        stack.enter_context(socket.create_connection(server.getsockname()))
        yield server.getsockname()


def listens_instead(here: Address) -> list[object]:
    """Begin a connection, give it up and listen; say what came of it, and whether the socket is the same."""
    with socket.socket() as mine:
        mine.setblocking(False)
        before = os.fstat(mine.fileno()).st_ino
        connection = attempt(lambda: mine.connect(here))
        attempt(lambda: mine.shutdown(socket.SHUT_RDWR))
        listened = attempt(mine.listen)
        return [connection, listened, os.fstat(mine.fileno()).st_ino == before]


def test_listener_gets_no_host_socket_before_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.network.gate._CONNECT_S", 0.5)
    with silent() as here:
        assert unprotected(lambda: listens_instead(here)) == ["EINPROGRESS", None, True]
        # Who may not listen gets one.
        assert in_gated_child(lambda: listens_instead(here), {here})[0] == ["EINPROGRESS", "EACCES", False]

        reply, _ = in_gated_child(lambda: listens_instead(here), {here}, sockets=tmp_path)

    assert reply == ["ETIMEDOUT", None, True]


@pytest.mark.parametrize("with_host", [True, False])
def test_connections_with_host_and_processes_are_rate_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_host: bool
) -> None:
    monkeypatch.setattr("sandbox.network.gate._JOINS_AT_ONCE", 3)
    monkeypatch.setattr("sandbox.network.gate._JOINS_PER_S", 10)

    def act() -> float:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(tmp_path / "own"))
            server.listen(10)
            start = time.monotonic()
            for _ in range(8):
                with socket.socket(socket.AF_INET if with_host else socket.AF_UNIX) as mine:
                    mine.connect(("192.0.2.53", 53) if with_host else str(tmp_path / "own"))
            return time.monotonic() - start

    took_s, refused = in_gated_child(act, set(), rules=["good.test"], sockets=tmp_path)

    assert took_s >= 0.5 - 0.05
    assert refused == []


def test_each_connect_is_charged_to_the_loop_share() -> None:
    share = LoopShare(at_once=0.0, per_s=1e-9)

    def act() -> None:
        with socket.socket() as mine:
            mine.connect(here)

    with listening() as (_, here):
        _, rest_s = behind_gate(act, {here}, lambda _gate: share.rest_s(now=time.monotonic()), share=share)

    assert rest_s > 0


def test_gate_ending_with_thread_awake_writes_to_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread may see the end before it is woken for it; its descriptors are soon somebody else's."""
    listener, other = os.pipe()
    write, faults = os.eventfd_write, []

    def late(descriptor: int, value: int) -> None:
        # It is awake already; and then has time to end.
        write(descriptor, value)
        time.sleep(0.2)
        try:
            write(descriptor, value)
        except OSError as error:
            faults.append(error)

    async def ended() -> None:
        gate = Gate(listener=listener, ways=Egress(share=LoopShare()), share=LoopShare())
        monkeypatch.setattr(os, "eventfd_write", late)
        gate.close()
        monkeypatch.undo()

    asyncio.run(ended())
    threads_ended()
    os.close(other)
    assert faults == []
