"""The host's side of one zygote: its loading, its parked workers, its end.

Nothing a zygote says is trusted further than it harms the zygote's own user: the process id of a
worker is read from the kernel, a worker must be the zygote's child and lead its own process group.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import struct
from collections import deque
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.errors import ConfinementError, FrameError, LoadError, SandboxError, ZygoteDied
from sandbox.frames import CONTROL_BYTES, Decoder, Kind, decode, encode
from sandbox.outcome import describe_status
from sandbox.policy import Policy

__all__ = ["Loaded", "Worker", "Zygote"]

log = logging.getLogger(__name__)

_CREDENTIALS = struct.Struct("3i")
_ANNOUNCEMENT_BYTES = 1 << 16
_LOG_LINES_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a zygote said after it loaded its program.

    Attributes:
        hello: The value that the program's `load` returned.
        threads: Threads of the zygote; above one it cannot fork and only loads.
    """

    hello: Mapping[str, object]
    threads: int


@dataclass(slots=True, kw_only=True, eq=False)
class Worker:
    """A parked worker, as the host holds it. Closed by its lease."""

    pid: int
    pidfd: int
    connection: socket.socket
    output: int

    def kill(self) -> None:
        """Kill the worker and everything in its process group."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let go of the descriptors; the process must have ended."""
        self.connection.close()
        os.close(self.output)
        os.close(self.pidfd)


@dataclass(slots=True, kw_only=True, eq=False)
class Zygote:
    """One zygote and the workers parked in it."""

    pid: int
    policy: Policy
    control: socket.socket
    parked: socket.socket
    output: int
    once: bool
    _loaded: "asyncio.Future[Loaded]" = field(init=False)
    _idle: deque[Worker] = field(init=False, default_factory=deque)
    _waiters: "deque[asyncio.Future[Worker]]" = field(init=False, default_factory=deque)
    _ordered: int = field(init=False, default=0)
    _reaped: dict[int, "asyncio.Future[int | None]"] = field(init=False, default_factory=dict)
    _burials: "set[asyncio.Task[None]]" = field(init=False, default_factory=set)
    _decoder: Decoder = field(init=False, default_factory=lambda: Decoder(CONTROL_BYTES))
    _output_left: int = field(init=False, default=_LOG_LINES_BYTES)
    _closed: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._loaded = loop.create_future()
        for channel in (self.control, self.parked):
            channel.setblocking(False)  # noqa: FBT003 - the standard library's signature
        os.set_blocking(self.output, False)
        loop.add_reader(self.control.fileno(), self._control_readable)
        loop.add_reader(self.parked.fileno(), self._parked_readable)
        loop.add_reader(self.output, self._output_readable)
        if self.once:
            self._ordered = 1

    @property
    def alive(self) -> bool:
        """Whether workers can still be had."""
        return not self._closed

    @property
    def idle(self) -> int:
        """How many workers are parked or on their way."""
        return len(self._idle) + self._ordered

    async def load(self, timeout_s: float) -> Loaded:
        """Wait until the program is loaded.

        Raises:
            LoadError: The author's file is at fault, or loading took longer than `timeout_s`.
            ConfinementError: A layer could not be put in place.
            ZygoteDied: The zygote ended while loading.
        """
        try:
            return await asyncio.wait_for(asyncio.shield(self._loaded), timeout_s)
        except TimeoutError:
            self.close()
            raise LoadError(f"it was still being imported after {timeout_s:g} seconds") from None

    def order(self, count: int) -> None:
        """Ask for `count` more workers; they announce themselves when they are parked."""
        if count > 0 and not self._closed and not self.once:
            self._ordered += count
            # A worker that somebody waits for has no time to rehearse.
            self.control.send(encode(Kind.FORK, {"count": count, "rehearse": not self._waiters}))

    async def take(self) -> Worker:
        """Return a parked worker, waiting for one if need be.

        Raises:
            ZygoteDied: The zygote has ended.
            SandboxError: The worker could not get ready; the message is the program's.
        """
        while self._idle:
            worker = self._idle.popleft()
            if _running(worker):
                return worker
            worker.close()
        if self._closed:
            raise ZygoteDied("the zygote has ended")
        future: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        self.order(len(self._waiters) - self._ordered)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._idle.append(future.result())
            raise

    def park(self, worker: Worker) -> None:
        """Give back a worker that was taken and not used."""
        self._idle.appendleft(worker)

    async def reaped(self, pid: int, timeout_s: float) -> str | None:
        """Wait until the zygote has reaped `pid`; return its wait status in words, if it came."""
        future = self._reaped.get(pid)
        if future is None:
            return None
        try:
            status = await asyncio.wait_for(asyncio.shield(future), timeout_s)
        except TimeoutError:
            return None
        finally:
            self._reaped.pop(pid, None)
        return None if status is None else describe_status(status)

    def bury(self, burial: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        """See a dead worker off in the background; `settled` waits for it."""
        task = asyncio.create_task(burial)
        self._burials.add(task)
        task.add_done_callback(self._burials.discard)
        return task

    async def settled(self) -> None:
        """Wait until every worker that was taken is gone."""
        await asyncio.gather(*self._burials, return_exceptions=True)

    def has_strays(self, worker: int) -> bool:
        """Say whether a call has left processes beside its worker: its children, or orphans it made.

        Orphans become children of the zygote, their nearest subreaper. A tool that times its forks
        against this look gains nothing: its processes are killed all the same, only not waited for.
        """
        try:
            orphans = _children_of(self.pid) - self._reaped.keys()
            return bool(_children_of(worker)) or any(os.getpgid(pid) == worker for pid in orphans)
        except OSError:
            # Gone meanwhile, or a kernel without lists of children: better to wait than to guess.
            return True

    def ended(self, status: int) -> None:
        """Take note that the forkserver has reaped this zygote."""
        if self.once:
            self._note_end(self.pid, status)
        if not self._loaded.done():
            self._loaded.set_exception(
                ZygoteDied(f"the process that imported it ended with {describe_status(status)}")
            )
        self.close()

    def close(self) -> None:
        """Kill the zygote and let go of its workers; they die with it."""
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        for fd in (self.control.fileno(), self.parked.fileno(), self.output):
            loop.remove_reader(fd)
        # Still our forkserver's child: its process id cannot have been given away.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.control.close()
        self.parked.close()
        os.close(self.output)
        self._disappoint(ZygoteDied("the zygote has ended"))

    def _disappoint(self, error: ZygoteDied) -> None:
        """Tell everybody who waits for this zygote, and let go of what nobody took."""
        for worker in self._idle:
            worker.kill()
            worker.close()
        self._idle.clear()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)
        for reaped in self._reaped.values():
            if not reaped.done():
                reaped.set_result(None)
        if not self._loaded.done():
            self._loaded.set_exception(error)
        if not self._loaded.cancelled():
            # Read once, so that asyncio does not report it as never retrieved.
            self._loaded.exception()

    def _control_readable(self) -> None:
        try:
            data = self.control.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            # The forkserver's report of the end follows; until then there is nothing to read.
            asyncio.get_running_loop().remove_reader(self.control.fileno())
            return
        try:
            for kind, body in self._decoder.feed(data):
                self._control_frame(kind, decode(body))
        except (FrameError, KeyError, TypeError, ValueError) as error:
            log.warning("zygote broke the frame protocol", extra={"pid": self.pid, "fault": str(error)})
            self.close()

    def _control_frame(self, kind: Kind, value: object) -> None:
        if not isinstance(value, dict):
            raise FrameError("a control frame that is no object")
        if kind is Kind.ENDED:
            self._note_end(int(value["pid"]), int(value["status"]))
        elif kind is Kind.LOADED and not self._loaded.done():
            self._loaded.set_result(Loaded(hello=dict(value["hello"]), threads=int(value["threads"])))
        elif kind is Kind.FAILED and not self._loaded.done():
            self._loaded.set_exception(_failure(value))

    def _parked_readable(self) -> None:
        while not self._closed:
            try:
                message, descriptors, _, _ = socket.recv_fds(self.parked, _ANNOUNCEMENT_BYTES, 4)
            except (BlockingIOError, OSError):
                return
            if not message:
                asyncio.get_running_loop().remove_reader(self.parked.fileno())
                return
            self._ordered = max(0, self._ordered - 1)
            self._deliver(self._adopt(message, descriptors))

    def _adopt(self, message: bytes, descriptors: list[int]) -> Worker | SandboxError:
        """Make a worker of what announced itself, after checking what it is."""
        if len(descriptors) != 2:
            for descriptor in descriptors:
                os.close(descriptor)
            return SandboxError(message.decode(errors="replace").removeprefix("failed: "))
        connection = socket.socket(fileno=descriptors[0])
        connection.setblocking(False)  # noqa: FBT003 - the standard library's signature
        os.set_blocking(descriptors[1], False)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid = _CREDENTIALS.unpack(credentials)[0]
        try:
            pidfd = os.pidfd_open(pid)
            if not (pid == self.pid if self.once else _parent_of(pid) == self.pid) or os.getpgid(pid) != pid:
                os.close(pidfd)
                raise ProcessLookupError(f"process {pid} is no worker of zygote {self.pid}")
        except OSError as error:
            connection.close()
            os.close(descriptors[1])
            log.warning("a worker was refused", extra={"zygote": self.pid, "fault": str(error)})
            return SandboxError(f"a worker ended before it was ready: {error}")
        # From here on its end is awaited; what ended before it was adopted interests nobody.
        self._reaped[pid] = asyncio.get_running_loop().create_future()
        return Worker(pid=pid, pidfd=pidfd, connection=connection, output=descriptors[1])

    def _note_end(self, pid: int, status: int) -> None:
        future = self._reaped.get(pid)
        if future is not None and not future.done():
            future.set_result(status)

    def _deliver(self, worker: Worker | SandboxError) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if waiter.done():
                continue
            if isinstance(worker, Worker):
                waiter.set_result(worker)
            else:
                waiter.set_exception(worker)
            return
        if isinstance(worker, Worker):
            self._idle.append(worker)
        else:
            log.warning("a worker could not get ready", extra={"zygote": self.pid, "fault": str(worker)})

    def _output_readable(self) -> None:
        try:
            data = os.read(self.output, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(self.output)
            return
        kept = data[: self._output_left]
        self._output_left -= len(kept)
        for line in kept.decode(errors="replace").splitlines():
            log.info("tool file printed while it was imported", extra={"line": line})


def _failure(value: Mapping[str, object]) -> SandboxError:
    message = str(value["message"])
    if value["fault"] == "load":
        line = value["line"]
        return LoadError(message, line if isinstance(line, int) else None)
    return ConfinementError("zygote", message)


def _running(worker: Worker) -> bool:
    try:
        signal.pidfd_send_signal(worker.pidfd, 0)
    except ProcessLookupError:
        return False
    return True


def _children_of(pid: int) -> set[int]:
    """Return the children of every thread of a process."""
    found: set[int] = set()
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as children:
            found.update(map(int, children.read().split()))
    return found


def _parent_of(pid: int) -> int:
    """Read the parent from /proc/PID/stat; the name in it may hold blanks and brackets."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    return int(text.rpartition(")")[2].split()[1])
