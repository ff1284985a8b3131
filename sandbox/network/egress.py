"""Egress of one zygote's workers: the host's half of a policy's network.

The gate consults this module before it connects. The host looks up a name when the worker's own C library
queries it: the queries go to port 53 over TCP, where the worker is connected with this module instead of a
name server. A call may then reach the addresses returned for an allowed name, on the ports of that name, if
they are public. So DNS rebinding gains nothing: the address that was checked is the one that is connected.

Addresses learned by one call do not help another.

Source: architecture, decision "Network"; resolv.conf(5), option `use-vc`; hosts(5).
"""

import asyncio
import errno
import functools
import logging
import resource
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from sandbox.loop_share import LoopShare
from sandbox.network.destinations import Destinations, IpAddress, is_name, plain
from sandbox.network.dns import LENGTH, Question, RecordType, ResponseCode, answer, read_question
from sandbox.network.gate import Address
from sandbox.network.own_addresses import is_own_address
from sandbox.token_bucket import TokenBucket

__all__ = ["RESOLVER_OPTIONS", "Egress", "addresses_of"]

log = logging.getLogger(__name__)

RESOLVER_OPTIONS = {"RES_OPTIONS": "use-vc"}
"""Environment of a worker that makes its C library resolve names over TCP."""

_NAMES_PORT = 53
_HOSTS = Path("/etc/hosts")
_MOST_CONNECTIONS = 32
_IDLE_S = 30.0
_QUERIES_AT_ONCE = 1000
_QUERIES_PER_S = 100
_AT_A_TIME = 4
_MOST_GROUPS = 256
_MOST_KNOWN = 1024
_MOST_REFUSED = 100
_MOST_TRIES = 16
_FAMILIES = {RecordType.IPV4: socket.AF_INET, RecordType.IPV6: socket.AF_INET6}
# No such name, or a name without an address of that family.
_NONE = (socket.EAI_NONAME, socket.EAI_NODATA, socket.EAI_ADDRFAMILY)

T = TypeVar("T")


@dataclass(slots=True)
class _Learned:
    """Lookups of one call's processes: names by address, and refused names."""

    names: dict[str, set[str]] = field(default_factory=dict)
    refused: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True, eq=False)
class Egress:
    """The egress rules of one gate. Belongs to the running loop.

    Attributes:
        share: Event loop time used by the workers.
        reach: Addresses that may be reached regardless of the other rules.
        destinations: Further destinations allowed by the operator.
        closed_ports: Ports that are closed except in `reach`, whatever is allowed.
        look_up: Finds the addresses of a name, of one family. Runs in a thread.
        is_own: Returns whether an address is one of this machine.
        report: Receives each name that `refused` will return.
    """

    share: LoopShare
    reach: frozenset[Address] = frozenset()
    destinations: Destinations = field(default_factory=Destinations)
    closed_ports: frozenset[int] = frozenset()
    look_up: Callable[[str, RecordType], Sequence[str]] = field(default_factory=lambda: addresses_of)
    is_own: Callable[[IpAddress], bool] = is_own_address
    report: Callable[[str], object] = lambda _name: None
    _learned: dict[int, _Learned] = field(init=False, default_factory=dict)
    _hosts: dict[str, set[str]] | None = field(init=False, default=None)
    # Connections for DNS queries, with the process group that made each.
    _talks: "dict[asyncio.Task[None], int]" = field(init=False, default_factory=dict)
    _places: asyncio.Semaphore = field(init=False, default_factory=lambda: asyncio.Semaphore(_AT_A_TIME))
    _queries: TokenBucket = field(
        init=False, default_factory=lambda: TokenBucket(at_once=_QUERIES_AT_ONCE, per_s=_QUERIES_PER_S)
    )

    def allows(self, address: Address, group: int) -> bool:
        """Return whether a process group may reach an address."""
        if address in self.reach:
            return True
        if not self.destinations.all or address[1] in self.closed_ports:
            return False
        names = self._names_of(address[0], group)
        return self.destinations.may_reach(*address, names, is_own=self.is_own)

    def tells_gates_apart(self, address: Address) -> bool:
        """Return whether it is an address in `reach`; other servers need not distinguish gates."""
        return address in self.reach

    def own(self, address: Address, group: int) -> socket.socket | None:
        """Return the worker's end of a connection for DNS queries, if the port is that of DNS; else None.

        Raises:
            OSError: There are too many such connections.
        """
        if address[1] != _NAMES_PORT or not self.destinations.all or self.allows(address, group):
            return None
        if len(self._talks) >= _MOST_CONNECTIONS:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "too many connections for names")
        theirs, ours = _pair()
        if ours.fileno() > resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2:
            # A number in the upper half: that half of the descriptors is reserved for calls.
            theirs.close()
            ours.close()
            raise OSError(errno.ENFILE, "too many connections are open")
        talk = asyncio.create_task(self.share.measured(self._talk, ours, group))
        self._talks[talk] = group
        talk.add_done_callback(functools.partial(self._hang_up, ours))
        return theirs

    def forget(self, group: int) -> list[str]:
        """Forget the addresses learned by a process group; return its refused names.

        Its DNS connections end: their queries belong to the call that made them.
        """
        for talk, asking in self._talks.items():
            if asking == group:
                talk.cancel()
        return list(self._learned.pop(group, _Learned()).refused)

    def refused(self, group: int) -> list[str]:
        """Return, once, the refused names of a process group; keep its learned addresses."""
        learned = self._learned.get(group)
        if learned is None:
            return []
        refused, learned.refused = list(learned.refused), {}
        return refused

    def close(self) -> None:
        """End every connection."""
        for talk in self._talks:
            talk.cancel()

    def _hang_up(self, ours: socket.socket, talk: "asyncio.Task[None]") -> None:
        """Forget a connection that has ended, perhaps before its task began."""
        del self._talks[talk]
        ours.close()

    def _of(self, group: int) -> _Learned:
        if group not in self._learned and len(self._learned) >= _MOST_GROUPS:
            del self._learned[next(iter(self._learned))]
        return self._learned.setdefault(group, _Learned())

    def _names_of(self, address: str, group: int) -> set[str]:
        learned = self._learned.get(group)
        names = set() if learned is None else learned.names.get(address, set())
        if self._hosts is None:
            # A worker reads this file itself, so it does not query these names.
            self._hosts = _names_by_address(_HOSTS, self.destinations)
        return names | self._hosts.get(address, set())

    async def _talk(self, ours: socket.socket, group: int) -> None:
        """Answer queries until the worker ends the connection, or reads no answers."""
        # No asyncio stream: it reads ahead, in callbacks that no share is charged for.
        try:
            while True:
                async with asyncio.timeout(_IDLE_S):
                    (length,) = LENGTH.unpack(await _exactly(ours, LENGTH.size))
                    message = await _exactly(ours, length)
                question = read_question(message)
                # Suspends even if the next query is there: only then is the last one charged.
                await asyncio.sleep(self._queries.spend(1, now=time.monotonic()))
                await self.share.rest()
                reply = await self._answer(question, group)
                frame = LENGTH.pack(len(reply)) + reply
                if ours.send(frame) < len(frame):
                    return
        except (OSError, TimeoutError, ValueError) as error:
            log.debug("dns connection ended", extra={"fault": str(error)})

    async def _answer(self, question: Question, group: int) -> bytes:
        name = plain(question.name)
        learned = self._of(group)
        if not self.destinations.may_look_up(name):
            if len(learned.refused) < _MOST_REFUSED:
                # The name is shown to people, and may contain any character.
                shown = name.encode("unicode_escape").decode()
                learned.refused[shown] = None
                self.report(shown)
            return answer(question, ResponseCode.NO_SUCH_NAME)
        if question.kind is None:
            return answer(question, ResponseCode.FOUND)
        async with self._places:
            code, addresses = await self._find(name, question.kind)
        for address in addresses:
            if len(learned.names) < _MOST_KNOWN or address in learned.names:
                learned.names.setdefault(address, set()).add(name)
        return answer(question, code, addresses)

    async def _find(self, name: str, kind: RecordType) -> tuple[ResponseCode, Sequence[str]]:
        try:
            return ResponseCode.FOUND, await _in_a_thread(functools.partial(self.look_up, name, kind))
        except socket.gaierror as error:
            if error.errno not in _NONE:
                return ResponseCode.TRY_AGAIN, ()
            # A name without addresses of this family has the same error, but may have others.
            unknown = error.errno == socket.EAI_NONAME and kind is RecordType.IPV4
            return (ResponseCode.NO_SUCH_NAME if unknown else ResponseCode.FOUND), ()
        except (OSError, UnicodeError):
            return ResponseCode.NO_SUCH_NAME, ()


async def _exactly(ours: socket.socket, count: int) -> bytes:
    """Receive `count` bytes.

    Raises:
        OSError: The connection has ended before.
    """
    data = b""
    while len(data) < count:
        part = await asyncio.get_running_loop().sock_recv(ours, count - len(data))
        if not part:
            raise ConnectionResetError(errno.ECONNRESET, "it has ended within a message")
        data += part
    return data


def addresses_of(name: str, kind: RecordType) -> list[str]:
    """Return the addresses of a name, as this machine resolves it.

    Raises:
        OSError: It has none, no server answered, or it is not a name.
    """
    if not is_name(name):
        # Checked here for all callers: this is the last step before the C library.
        raise OSError(errno.EINVAL, f"{name!r} is not a name")
    # A machine without IPv6 must not wait for IPv6 connections.
    flags = socket.AI_ADDRCONFIG if kind is RecordType.IPV6 else 0
    found = socket.getaddrinfo(name, None, _FAMILIES[kind], socket.SOCK_STREAM, flags=flags)
    return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))


def _names_by_address(file: Path, destinations: Destinations) -> dict[str, set[str]]:
    """Read the allowed names of each address from a hosts file."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    found: dict[str, set[str]] = {}
    for line in lines:
        address, *names = line.partition("#")[0].split() or [""]
        allowed = {plain(name) for name in names if destinations.may_look_up(name)}
        if allowed:
            found.setdefault(address, set()).update(allowed)
    return found


def _pair() -> tuple[socket.socket, socket.socket]:
    """Return two ends of a TCP connection of this process with itself.

    A UNIX pair could carry the data, but clients set options that only TCP has.

    Raises:
        OSError: There is no loopback.
    """
    host = f"127.{secrets.randbelow(254) + 1}.{secrets.randbelow(256)}.{secrets.randbelow(254) + 1}"
    with socket.create_server((host, 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        for _ in range(_MOST_TRIES):
            ours, source = server.accept()
            if source == theirs.getsockname():
                ours.setblocking(False)  # noqa: FBT003 - the standard library's signature
                return theirs, ours
            # Another process of this machine connected to the port first.
            ours.close()
    theirs.close()
    raise ConnectionRefusedError(errno.ECONNREFUSED, "others keep coming in between")


async def _in_a_thread(act: Callable[[], T]) -> T:
    """Run a slow function in a daemon thread, which does not delay the exit."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(set_: Callable[[], None]) -> None:
        try:
            loop.call_soon_threadsafe(lambda: None if done.done() else set_())
        except RuntimeError:
            # The loop is closed: there is no waiter any more.
            return

    def run() -> None:
        try:
            value = act()
        except Exception as error:  # noqa: BLE001 - raised again where it is awaited
            caught = error
            tell(lambda: done.set_exception(caught))
        else:
            tell(lambda: done.set_result(value))

    threading.Thread(target=run, name="names", daemon=True).start()
    return await done
