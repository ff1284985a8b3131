"""The one way out of a confined process: a TCP connection that the host makes on its behalf.

A worker may have TCP sockets, but cannot connect them itself. Its `connect` blocks in the kernel, which
notifies the gate. The gate reads the address from the waiting thread. If the policy allows the address, the
gate connects a socket of its own to it and replaces the worker's with that one. The worker may overwrite the
address in its memory meanwhile: the copy that was checked is used. `EgressPolicy` decides on addresses, and
on those that stand for the host itself.

If processes may have sockets of their own, the gate connects them with each other as well (`own_sockets`).

The notification descriptor was sent here before the zygote loaded any author code, and the kernel allows no
second one (EBUSY), so no worker can answer its own requests.

Operations on that descriptor, and on the memory of the requesting process, wait for locks that this process
may hold while it is not scheduled. So a separate thread does them, never the event loop.

Source: seccomp_unotify(2), its sections on security and on time of check; linux/seccomp.h; ip(7).
"""

import asyncio
import contextlib
import errno
import fcntl
import ipaddress
import logging
import os
import resource
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

from sandbox.fsuid import as_owner_of
from sandbox.loop_share import LoopShare
from sandbox.network import own_sockets
from sandbox.network.destinations import written
from sandbox.token_bucket import TokenBucket

__all__ = ["Address", "EgressPolicy", "Gate", "address_of"]

log = logging.getLogger(__name__)

Address = tuple[str, int]
"""A numeric IP address and a port."""

# struct seccomp_notif: id, pid, flags, then struct seccomp_data: nr, arch, instruction, six arguments.
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")
_RESPONSE = struct.Struct("=QqiI")
_ADDFD = struct.Struct("=QIIII")
_RECEIVE, _SEND, _ID_VALID, _ADD = 0xC0502100, 0xC0182101, 0x40082102, 0x40182103
_ADD_IN_PLACE = 1

_SOCKADDR_BYTES = 128
_CONNECT_S = 10.0
# Wait for the connection of a non-blocking socket, which is often immediate, as on the same machine.
_AT_ONCE_S = 0.05
# Repeated denied connects are answered slowly, so that they cost the host nothing.
_PATIENT_REFUSALS = 100
_REFUSAL_S = 0.05
_MAX_OPEN = 64
# A tool file that forks during its import can make any number of groups.
_MAX_GROUPS = 256

# Connections with the host, and between confined processes: the kernel charges their resources to the host.
_JOINS_AT_ONCE = 1000
_JOINS_PER_S = 100

_LOOPBACK = ipaddress.IPv4Network("127.0.0.0/8")
_IP_BIND_ADDRESS_NO_PORT = 24


class EgressPolicy(Protocol):
    """Decisions for a gate. Each request names the process group of the requester."""

    def allows(self, address: Address, group: int) -> bool:
        """Return whether an address may be reached."""
        ...

    def tells_gates_apart(self, address: Address) -> bool:
        """Return whether a server at a loopback address identifies gates by their source address."""
        ...

    def own(self, address: Address, group: int) -> socket.socket | None:
        """Return one end of a connection with the host, if the address stands for the host; else None.

        Raises:
            OSError: It stands for the host, but there are too many connections.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Call:
    """One blocked `connect`, from the kernel's notification."""

    id: int
    thread: int
    descriptor: int
    pointer: int
    length: int
    at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A `_Call` after its requester was inspected.

    Attributes:
        call: The call.
        group: Process group of the requester.
        address: Its destination; None if that is not an IP address.
        path: Its destination instead, if it is a UNIX socket with a name in the file system.
        joined: A connection with the listener there, if both belong to the same zygote.
        flags: Flags of the descriptor to be replaced, as the kernel lists them.
        fault: Error number if it could not be inspected or joined, else 0.
    """

    call: _Call
    group: int = 0
    address: Address | None = None
    path: str | None = None
    joined: socket.socket | None = None
    flags: int = 0
    fault: int = 0


@dataclass(frozen=True, slots=True)
class _Answer:
    """Answer to a call: an error number, or 0 with a socket."""

    request: _Asked
    number: int
    connected: socket.socket | None = None


@dataclass(slots=True)
class _Knocks:
    """Failed attempts of one process group: their number, and the first addresses."""

    count: int = 0
    refused: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True, eq=False)
class Gate:
    """Answers every `connect` of one zygote and its workers. Starts at once, in the running loop.

    For servers that identify gates, it connects from a loopback address of its own.

    Attributes:
        listener: Notification descriptor of the seccomp filter; the gate closes it.
        ways: Decides on addresses.
        share: Event loop time used by the processes.
        sockets: The home, if these processes may have sockets in it and reach each other; else None. Then
            no unconnected socket is handed out, since they could listen on it.
        report: Receives each address that `refused` will return.
    """

    listener: int
    ways: EgressPolicy
    share: LoopShare
    sockets: Path | None = None
    report: Callable[[str], object] = lambda _address: None
    _line: "_Line" = field(init=False)
    _source: str = field(init=False, default_factory=lambda: str(_LOOPBACK[2**16 + secrets.randbelow(2**23)]))
    _knocks: dict[int, _Knocks] = field(init=False, default_factory=dict)
    # Time since which the requests of a group count.
    _turns: dict[int, float] = field(init=False, default_factory=dict)
    _answers: "set[asyncio.Task[None]]" = field(init=False, default_factory=set)
    _closed: bool = field(init=False, default=False)
    _joins: TokenBucket = field(
        init=False, default_factory=lambda: TokenBucket(at_once=_JOINS_AT_ONCE, per_s=_JOINS_PER_S)
    )

    def __post_init__(self) -> None:
        os.set_inheritable(self.listener, False)  # noqa: FBT003 - the standard library's signature
        loop = asyncio.get_running_loop()
        self._line = _Line(
            self.listener,
            sockets=self.sockets,
            hear=lambda request: loop.call_soon_threadsafe(self._start_answer, request),
        )

    def close(self) -> None:
        """Stop answering; the kernel then fails the requests with ENOSYS."""
        if self._closed:
            return
        self._closed = True
        for answer in self._answers:
            answer.cancel()
        self._line.end()

    def refused(self, group: int) -> list[str]:
        """Return, once, the refused addresses of a process group."""
        return self._knocks.pop(group, _Knocks()).refused

    def forget(self, group: int) -> None:
        """Forget all requests of a process group up to now, including unanswered ones."""
        self._knocks.pop(group, None)
        self._turns.pop(group, None)
        if len(self._turns) >= _MAX_GROUPS:
            del self._turns[next(iter(self._turns))]
        self._turns[group] = time.monotonic()

    def _start_answer(self, request: _Asked) -> None:
        if self._closed:
            if request.joined is not None:
                request.joined.close()
            return
        answer = asyncio.create_task(self.share.measured(self._answer, request))
        self._answers.add(answer)
        answer.add_done_callback(self._answered)

    def _answered(self, answer: "asyncio.Task[None]") -> None:
        self._answers.discard(answer)
        if not answer.cancelled() and answer.exception() is not None:
            log.error("gate failed", exc_info=answer.exception())

    async def _answer(self, request: _Asked) -> None:
        try:
            number, connected = await self._connect(request)
        except OSError as error:
            await self._knocked(request, error)
            self._line.answer(_Answer(request, error.errno or errno.EIO))
        else:
            self._line.answer(_Answer(request, number, connected))

    async def _connect(self, request: _Asked) -> tuple[int, socket.socket]:
        """Connect for the requester; return the error number of its `connect`, and the socket.

        Raises:
            OSError: The connection is not allowed, or failed.
        """
        if request.joined is not None:
            return 0, await self._paced(request.joined, request)
        await self.share.rest()
        address = request.address
        if request.fault:
            raise OSError(request.fault, "it cannot be looked at")
        if address is None:
            raise PermissionError(errno.EACCES, "no IP address")
        blocks = not request.flags & os.O_NONBLOCK
        own = self.ways.own(address, request.group)
        if own is not None:
            return 0, await self._paced(own, request)
        if not self.ways.allows(address, request.group):
            raise PermissionError(errno.EACCES, "not one of the addresses of the policy")
        ours = self._socket(address)
        try:
            number = await _reach(ours, address, waits=blocks or self.sockets is not None)
            ours.setblocking(blocks)
        except BaseException:
            ours.close()
            raise
        return number, ours

    async def _paced(self, joined: socket.socket, request: _Asked) -> socket.socket:
        wait_s = self._joins.spend(1, now=time.monotonic())
        try:
            await asyncio.sleep(wait_s)
            await self.share.rest()
            joined.setblocking(not request.flags & os.O_NONBLOCK)
        except BaseException:
            joined.close()
            raise
        return joined

    def _socket(self, address: Address) -> socket.socket:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        ours = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        if ours.fileno() > resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2:
            # A number in the upper half: that half of the descriptors is reserved for calls.
            ours.close()
            raise OSError(errno.ENFILE, "too many connections are being made")
        # Options of the client's own socket are lost with it; nearly all clients set this one.
        ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.ways.tells_gates_apart(address) and ipaddress.ip_address(address[0]) in _LOOPBACK:
            # The port is chosen at connect: otherwise closed connections would soon use up all ports.
            ours.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
            ours.bind((self._source, 0))
        return ours

    async def _knocked(self, request: _Asked, error: OSError) -> None:
        if request.group not in self._knocks and len(self._knocks) >= _MAX_GROUPS:
            del self._knocks[next(iter(self._knocks))]
        knocks = self._knocks.setdefault(request.group, _Knocks())
        knocks.count += 1
        if knocks.count > _PATIENT_REFUSALS:
            await asyncio.sleep(_REFUSAL_S)
        elif error.errno == errno.EACCES and request.call.at >= self._turns.get(request.group, 0.0):
            knocks.refused.append(_shown(request))
            self.report(knocks.refused[-1])


def _shown(request: _Asked) -> str:
    if request.address is not None:
        return written(*request.address)
    # The path is shown to people, and may contain any character.
    named = None if request.path is None else request.path.encode("unicode_escape", "replace").decode()
    return "an address that is not an IP address" if named is None else f"the socket {named}"


@dataclass(slots=True, eq=False)
class _Line:
    """The notification descriptor, and the only thread that uses it.

    Attributes:
        listener: The descriptor; closed at the end.
        sockets: The home, if sockets in it may be reached.
        hear: Called in the thread with each request.
    """

    listener: int
    sockets: Path | None
    hear: Callable[[_Asked], object] = field(kw_only=True)
    _answers: "SimpleQueue[_Answer | None]" = field(init=False, default_factory=SimpleQueue)
    _wake: int = field(init=False)
    # The number of a closed descriptor is soon reused, so it must not be written to then.
    _closing: threading.Lock = field(init=False, default_factory=threading.Lock)
    _is_closed: bool = field(init=False, default=False)
    _open: int = field(init=False, default=0)
    _over: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        threading.Thread(target=self._run, name="gate", daemon=True).start()

    def answer(self, answer: _Answer) -> None:
        """Send an answer, except after the end."""
        self._wake_with(answer)

    def end(self) -> None:
        """Let the thread end."""
        self._wake_with(None)

    def _wake_with(self, answer: _Answer | None) -> None:
        # The thread may be awake already, and end before this wake-up.
        with self._closing:
            if not self._is_closed:
                self._answers.put(answer)
                os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            # After any failure too: once the listener is closed, the kernel fails requests, and none blocks.
            with self._closing:
                self._is_closed = True
                os.close(self.listener)
                os.close(self._wake)

    def _serve(self) -> None:
        answers, both = select.poll(), select.poll()
        for poll, descriptor in ((answers, self._wake), (both, self._wake), (both, self.listener)):
            poll.register(descriptor, select.POLLIN)
        while True:
            # Above this number, requests stay blocked in the kernel.
            listening = not self._over and self._open < _MAX_OPEN
            ready = dict((both if listening else answers).poll())
            if self._wake in ready and not self._tell():
                return
            if ready.get(self.listener, 0) & select.POLLIN:
                self._receive()
            elif self.listener in ready:
                # No process with the filter is left; before Linux 6.11 receiving would now block for ever.
                self._over = True

    def _tell(self) -> bool:
        """Send the queued answers; return False at the end."""
        os.eventfd_read(self._wake)
        while not self._answers.empty():
            answer = self._answers.get()
            if answer is None:
                return False
            self._respond(answer)
        return True

    def _receive(self) -> None:
        buffer = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(self.listener, _RECEIVE, buffer)
        except OSError as error:
            # ENOENT: the requester has been killed meanwhile.
            self._over = error.errno not in (errno.ENOENT, errno.EINTR)
            return
        id_, thread, _flags, _call, _arch, _at, descriptor, pointer, length, *_rest = _NOTIFICATION.unpack(
            buffer
        )
        call = _Call(id_, thread, descriptor & 0xFFFF_FFFF, pointer, length & 0xFFFF_FFFF)
        self._open += 1
        try:
            request = self._look(call)
        except OSError as error:
            request = _Asked(call, fault=error.errno or errno.EIO)
        try:
            self.hear(request)
        except RuntimeError:
            # The loop is closed, so no answer will follow.
            self._over = True
            if request.joined is not None:
                request.joined.close()

    def _look(self, call: _Call) -> _Asked:
        """Copy the address from the waiting thread, and identify its process.

        Raises:
            OSError: It cannot be read, or the request is not pending any more.
        """
        with as_owner_of(call.thread), open(f"/proc/{call.thread}/mem", "rb", buffering=0) as memory:
            group, flags = os.getpgid(call.thread), _flags_of(call)
            # Only this proves that the pid still belongs to the requesting thread, not to a later one.
            fcntl.ioctl(self.listener, _ID_VALID, struct.pack("=Q", call.id))
            try:
                raw = os.pread(memory.fileno(), min(call.length, _SOCKADDR_BYTES), call.pointer)
            except (OSError, OverflowError):
                return _Asked(call, group, fault=errno.EFAULT)
        path = None if self.sockets is None else own_sockets.path_of(raw)
        if path is None or self.sockets is None:
            return _Asked(call, group, address_of(raw), flags=flags)
        return self._join(_Asked(call, group, path=path, flags=flags), path, self.sockets)

    def _join(self, request: _Asked, path: str, home: Path) -> _Asked:
        """Connect the requester with a listening process of the same zygote."""
        try:
            joined = own_sockets.join(request.call.thread, path, home=home)
        except OSError as error:
            return replace(request, fault=error.errno or errno.EIO)
        try:
            # It was inspected by its pid, which must still belong to the requesting thread.
            fcntl.ioctl(self.listener, _ID_VALID, struct.pack("=Q", request.call.id))
        except OSError:
            joined.close()
            raise
        return replace(request, joined=joined)

    def _respond(self, answer: _Answer) -> None:
        self._open -= 1
        call, number = answer.request.call, answer.number
        if answer.connected is not None:
            with answer.connected as ours:
                number = self._put(call, ours, answer.request.flags) or number
        # The requester may have been killed while it waited.
        with contextlib.suppress(OSError):
            fcntl.ioctl(self.listener, _SEND, _RESPONSE.pack(call.id, 0, -number, 0))

    def _put(self, call: _Call, ours: socket.socket, flags: int) -> int:
        """Replace the worker's socket; return 0 or an error number."""
        keep = os.O_CLOEXEC if flags & os.O_CLOEXEC else 0
        try:
            request = _ADDFD.pack(call.id, _ADD_IN_PLACE, ours.fileno(), call.descriptor, keep)
            fcntl.ioctl(self.listener, _ADD, request)
        except OSError as error:
            return error.errno or errno.EIO
        return 0


async def _reach(ours: socket.socket, address: Address, *, waits: bool) -> int:
    """Connect, and return the result for the requester: 0, or EINPROGRESS for a non-blocking socket.

    Raises:
        OSError: The connection was refused or timed out.
    """
    try:
        async with asyncio.timeout(_CONNECT_S if waits else _AT_ONCE_S):
            await asyncio.get_running_loop().sock_connect(ours, address)
    except TimeoutError:
        if waits:
            raise TimeoutError(errno.ETIMEDOUT, "nobody answered") from None
        return errno.EINPROGRESS
    return 0


def address_of(raw: bytes) -> Address | None:
    """Return the IP address in a `struct sockaddr`; None for any other kind, or a truncated one.

    An IPv4-mapped IPv6 address is returned as the IPv4 address.

    Source: ip(7), ipv6(7).
    """
    if len(raw) < 16:
        return None
    (family,) = struct.unpack_from("=H", raw)
    (port,) = struct.unpack_from(">H", raw, 2)
    if family == socket.AF_INET:
        return str(ipaddress.IPv4Address(raw[4:8])), port
    if family == socket.AF_INET6 and len(raw) >= 28:
        address = ipaddress.IPv6Address(raw[8:24])
        return str(address.ipv4_mapped or address), port
    return None


def _flags_of(call: _Call) -> int:
    """Read the flags of the descriptor that the new socket replaces, as the kernel lists them."""
    path = f"/proc/{call.thread}/fdinfo/{call.descriptor}"
    # As bytes: a text file would import its codec, here in a thread.
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        for line in file:
            name, _, value = line.partition(b":")
            if name == b"flags":
                return int(value, 8)
    raise OSError(errno.EBADF, "the descriptor is not open")
