"""Egress of one zygote's workers: the host's half of a policy's network.

The gate asks here before it connects. A name is looked up by the host, when the worker's own C library
asks for it: the questions go to port 53 over TCP, and there the worker gets a connection with this module
in place of a name server. An address that came as the answer for an allowed name may be reached by the
call that asked, on the ports of that name, if it is a public one; so nothing is gained by a name whose
answer changes, and the address that was judged is the one that is connected.

What one call has learned is of no use to another.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from sandbox.network.destinations import Destinations, IpAddress, is_name, plain
from sandbox.network.dns import LENGTH, Question, RecordType, ResponseCode, answer, read_question
from sandbox.network.gate import Address
from sandbox.network.own_addresses import is_own_address

__all__ = ["RESOLVER_OPTIONS", "Egress", "addresses_of"]

log = logging.getLogger(__name__)

RESOLVER_OPTIONS = {"RES_OPTIONS": "use-vc"}
"""Environment of a worker that makes its C library resolve names over TCP."""

_NAMES_PORT = 53
_HOSTS = Path("/etc/hosts")
_MOST_CONNECTIONS = 32
_IDLE_S = 30.0
_AT_A_TIME = 4
_MOST_GROUPS = 256
_MOST_KNOWN = 1024
_MOST_REFUSED = 100
_MOST_TRIES = 16
_FAMILIES = {RecordType.IPV4: socket.AF_INET, RecordType.IPV6: socket.AF_INET6}
# No such name, or a name without such an address.
_NONE = (socket.EAI_NONAME, socket.EAI_NODATA, socket.EAI_ADDRFAMILY)

T = TypeVar("T")


@dataclass(slots=True)
class _Learned:
    """Lookups of one call's processes: names by address, and refused names."""

    names: dict[str, set[str]] = field(default_factory=dict)
    refused: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True, eq=False)
class Egress:
    """The ways out for one gate. Lives in the running loop.

    Attributes:
        reach: Addresses that may be reached whatever else is said.
        destinations: What the operator allows beside them.
        closed_ports: Ports that are open nowhere beside them, whatever is allowed.
        look_up: Finds the addresses of a name, of one family. Runs in a thread.
        is_own: Returns whether an address is one of this machine.
        report: Receives each name that `refused` will return.
    """

    reach: frozenset[Address] = frozenset()
    destinations: Destinations = field(default_factory=Destinations)
    closed_ports: frozenset[int] = frozenset()
    look_up: Callable[[str, RecordType], Sequence[str]] = field(default_factory=lambda: addresses_of)
    is_own: Callable[[IpAddress], bool] = is_own_address
    report: Callable[[str], object] = lambda _name: None
    _learned: dict[int, _Learned] = field(init=False, default_factory=dict)
    _hosts: dict[str, set[str]] | None = field(init=False, default=None)
    # Connections for names, by the process group that has made each.
    _talks: "dict[asyncio.Task[None], int]" = field(init=False, default_factory=dict)
    _places: asyncio.Semaphore = field(init=False, default_factory=lambda: asyncio.Semaphore(_AT_A_TIME))

    def allows(self, address: Address, group: int) -> bool:
        """Return whether a process group may reach an address."""
        if address in self.reach:
            return True
        if not self.destinations.all or address[1] in self.closed_ports:
            return False
        names = self._names_of(address[0], group)
        return self.destinations.may_reach(*address, names, is_own=self.is_own)

    def tells_gates_apart(self, address: Address) -> bool:
        """Return whether it is one of our own addresses: others need not know of gates."""
        return address in self.reach

    def own(self, address: Address, group: int) -> socket.socket | None:
        """Return the worker's end of a connection on which it may ask for names, where it wants one.

        Raises:
            OSError: There are too many already.
        """
        if address[1] != _NAMES_PORT or not self.destinations.all or self.allows(address, group):
            return None
        if len(self._talks) >= _MOST_CONNECTIONS:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "too many connections for names")
        theirs, ours = _pair()
        if ours.fileno() > resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2:
            # Descriptors are numbered from below: the other half is for calls.
            theirs.close()
            ours.close()
            raise OSError(errno.ENFILE, "too many connections are open")
        talk = asyncio.create_task(self._talk(ours, group))
        self._talks[talk] = group
        talk.add_done_callback(functools.partial(self._hang_up, ours))
        return theirs

    def forget(self, group: int) -> list[str]:
        """Forget what a process group has learned; return the names that it asked for in vain.

        Its connections for names end: what is asked on them belongs to the call that has made them.
        """
        for talk, asking in self._talks.items():
            if asking == group:
                talk.cancel()
        return list(self._learned.pop(group, _Learned()).refused)

    def refused(self, group: int) -> list[str]:
        """Return, once, the names that a process group asked for in vain; what it has learned stays."""
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
        """Forget a connection that has ended, which it may have before it began."""
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
            # A worker reads this file itself, and so does not ask.
            self._hosts = _names_by_address(_HOSTS, self.destinations)
        return names | self._hosts.get(address, set())

    async def _talk(self, ours: socket.socket, group: int) -> None:
        """Answer questions until the worker has no more."""
        try:
            reader, writer = await asyncio.open_connection(sock=ours)
        except OSError:
            ours.close()
            return
        try:
            while True:
                async with asyncio.timeout(_IDLE_S):
                    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                    message = await reader.readexactly(length)
                reply = await self._answer(read_question(message), group)
                writer.write(LENGTH.pack(len(reply)) + reply)
                async with asyncio.timeout(_IDLE_S):
                    await writer.drain()
        except (asyncio.IncompleteReadError, OSError, TimeoutError, ValueError) as error:
            log.debug("dns connection ended", extra={"fault": str(error)})
        finally:
            writer.transport.abort()

    async def _answer(self, question: Question, group: int) -> bytes:
        name = plain(question.name)
        learned = self._of(group)
        if not self.destinations.may_look_up(name):
            if len(learned.refused) < _MOST_REFUSED:
                # It is shown to people, and may hold any letter there is.
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
            # Of a name without such addresses this is said, too; it may have others.
            unknown = error.errno == socket.EAI_NONAME and kind is RecordType.IPV4
            return (ResponseCode.NO_SUCH_NAME if unknown else ResponseCode.FOUND), ()
        except (OSError, UnicodeError):
            return ResponseCode.NO_SUCH_NAME, ()


def addresses_of(name: str, kind: RecordType) -> list[str]:
    """Return the addresses of a name, as this machine finds them.

    Raises:
        OSError: It has none, nobody answered, or it is not a name.
    """
    if not is_name(name):
        # For all callers: this is the last place before the C library.
        raise OSError(errno.EINVAL, f"{name!r} is not a name")
    # Who has no IPv6 of its own shall not be sent there and wait.
    flags = socket.AI_ADDRCONFIG if kind is RecordType.IPV6 else 0
    found = socket.getaddrinfo(name, None, _FAMILIES[kind], socket.SOCK_STREAM, flags=flags)
    return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))


def _names_by_address(file: Path, destinations: Destinations) -> dict[str, set[str]]:
    """Read which allowed names stand for an address in a hosts file."""
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
    """Return two ends of a TCP connection with this process itself.

    A UNIX pair would do for the data; but clients set options that only TCP has.

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
            # Somebody else of this machine found the port in that moment.
            ours.close()
    theirs.close()
    raise ConnectionRefusedError(errno.ECONNREFUSED, "others keep coming in between")


async def _in_a_thread(act: Callable[[], T]) -> T:
    """Do what may take long in a thread that nobody has to wait for, even when all ends."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(set_: Callable[[], None]) -> None:
        try:
            loop.call_soon_threadsafe(lambda: None if done.done() else set_())
        except RuntimeError:
            # The loop is closed: nobody waits any more.
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
