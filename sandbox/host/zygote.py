"""The host's side of one zygote: its loading, its parked workers, its end.

A message of a zygote can harm only the zygote's own user: the process id of a
worker is read from the kernel, a worker must be the zygote's child and lead its own process group.
"""

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import time
from collections import Counter, deque
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from sandbox.errors import ConfinementError, FrameError, LoadError, NoProcess, SandboxError, ZygoteDied
from sandbox.frames import CONTROL_BYTES, GATE, NO_PROCESS, Decoder, FrameKind, decode, encode
from sandbox.host.closer import Closer
from sandbox.host.connection import Connection
from sandbox.host.import_output import ImportOutput
from sandbox.host.job import Job
from sandbox.host.loop_share import LoopShare
from sandbox.host.parking import Parking
from sandbox.host.process_stat import ProcessStat
from sandbox.host.retirement import Reuse, why_overused
from sandbox.host.stopping import look, resume_process
from sandbox.host.worker import Worker, children_of, maker_of, number_inside, own_end
from sandbox.network.destinations import Destinations
from sandbox.network.egress import Egress
from sandbox.network.gate import Gate
from sandbox.outcome import Denial, describe_status
from sandbox.policy import Limits, Policy

__all__ = ["Loaded", "Zygote"]

log = logging.getLogger(__name__)

_READY_S = 30.0
# As long as a worker may take to undo what its program has set up; clients of a server on stdio wait little
# longer before they kill it.
_FINISH_S = 1.5
# Why a worker goes that has done nothing odd.
_IN_ORDER = ("age", "calls", "idle", "surplus", "drained", "session ended")
# Process id of the first process of a pid namespace, inside.
_FIRST = 1
_ANNOUNCEMENT_BYTES = 1 << 16
_PROCESSORS = len(os.sched_getaffinity(0))
# Of the reason why a worker is not ready, for its caller and the log.
_REASON_CHARS = 4096
# Descriptors of one user that are open here only until they are closed.
_MOST_BEHIND = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Report of a zygote after it loaded its program.

    Attributes:
        hello: The value that the program's `load` returned.
        threads: Threads of the zygote; above one it cannot fork and only loads.
    """

    hello: Mapping[str, object]
    threads: int


class _Waiter(NamedTuple):
    """A call that found no worker parked.

    Attributes:
        found: The worker that it gets.
        limits: Its limits.
        fresh: Whether only a worker will do that has served no call.
        shared: Whether it is to serve several calls at once.
    """

    found: "asyncio.Future[Worker]"
    limits: Limits
    fresh: bool
    shared: bool


@dataclass(slots=True, kw_only=True, eq=False)
class Zygote:
    """One zygote and the workers parked in it.

    Attributes:
        pid: Its process id.
        policy: What it and its workers may touch.
        control: Our end of its control socket.
        parked: Where its workers announce themselves.
        output: Where what it prints can be read.
        once: Whether it becomes the one worker itself.
        closer: Closes what it and its workers gave us.
        reuse: How long its workers stay with their user.
        parking: Its idle workers.
        retired: How many workers were retired, by reason.
        tally: The counts of all zygotes so far, for metrics.
        loop_share: What its workers have taken of the event loop.
        oom_kills: Processes killed in its control group for lack of memory, when it was last asked.
        loss: Why it ended, where that was not a fault of its own.
        alive: Whether workers can still be had.
    """

    pid: int
    policy: Policy
    control: Connection
    parked: Connection
    output: int
    once: bool
    closer: Closer = field(default_factory=Closer)
    reuse: Reuse = field(default_factory=Reuse)
    tally: Counter[str] = field(default_factory=Counter)
    loop_share: LoopShare = field(init=False, default_factory=LoopShare)
    oom_kills: int = field(init=False, default=0)
    loss: ZygoteDied | None = field(init=False, default=None)
    alive: bool = field(init=False, default=True)
    retired: Counter[str] = field(init=False, default_factory=Counter)
    _loaded: "asyncio.Future[Loaded]" = field(init=False)
    parking: Parking = field(init=False)
    _waiters: "deque[_Waiter]" = field(init=False, default_factory=deque)
    _ordered: int = field(init=False, default=0)
    _reaped: dict[int, "asyncio.Future[int | None]"] = field(init=False, default_factory=dict)
    _reapings: "set[asyncio.Task[None]]" = field(init=False, default_factory=set)
    _decoder: Decoder = field(init=False, default_factory=lambda: Decoder(CONTROL_BYTES))
    _import_output: ImportOutput = field(init=False)
    _reaped_itself: bool = field(init=False, default=False)
    # Workers by the number that the zygote, perhaps in a pid namespace, knows them by, and by ours.
    _announced: dict[int, int] = field(init=False, default_factory=dict)
    _finishes: bool = field(init=False, default=False)
    _unnumbered: int = field(init=False, default=0)
    _gate: Gate | None = field(init=False, default=None)
    _exits: Egress = field(init=False)

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._exits = Egress(
            reach=frozenset(self.policy.reach),
            destinations=Destinations.parse(self.policy.net),
            closed_ports=frozenset(self.policy.closed_ports),
        )
        self.parking = Parking(
            reuse=self.reuse,
            raises_limits=not self.policy.renewable,
            has_strays=self.has_strays,
            retire=self.retire,
            device=_device_of(self.policy.home),
        )
        self._loaded = loop.create_future()
        os.set_blocking(self.output, False)
        loop.add_reader(self.control.fileno(), self._control_readable)
        loop.add_reader(self.parked.fileno(), self._parked_readable)
        self._import_output = ImportOutput(self.output)
        if self.once:
            self._ordered = 1

    @property
    def idle(self) -> int:
        """The number of parked and ordered workers."""
        return len(self.parking.idle) + self._ordered

    @property
    def at_hand(self) -> int:
        """The number of parked workers."""
        return len(self.parking.idle)

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
        """Order `count` more workers; they report when they are parked."""
        if count > 0 and self.alive and not self.once:
            # A worker that somebody waits for has no time for libraries. Nor has one beside as many others as
            # there are processors: who comes next will wait for it.
            warm = not self._waiters and self._ordered < _PROCESSORS
            frame = encode(FrameKind.FORK, {"count": count, "warm": warm})
            try:
                if self.control.send_now(frame):
                    raise BlockingIOError(errno.EAGAIN, "it has left hundreds of orders unread")
            except OSError as error:
                # Dead and not yet reported, or deaf.
                log.warning("zygote order failed", extra={"pid": self.pid, "fault": str(error)})
                self.close()
            else:
                self._ordered += count

    async def take(
        self,
        timeout_s: float = _READY_S,
        limits: Limits | None = None,
        *,
        fresh: bool = True,
        shared: bool = False,
    ) -> Worker:
        """Return a parked worker, waiting for one if need be.

        Args:
            timeout_s: How long to wait for one, in seconds.
            limits: The limits of the call it is for; those of the policy if not given.
            fresh: Whether only one will do that has served no call.
            shared: Whether it is to serve several calls at once.

        Raises:
            ZygoteDied: The zygote has ended, or had no worker ready within `timeout_s`.
            SandboxError: The worker could not get ready; the message is the program's.
        """
        if len(self.closer.left) > _MOST_BEHIND:
            raise SandboxError("what earlier calls of this user gave away is still being closed; try again")
        wanted = limits or self.policy.limits
        parked = self.parking.take(wanted, fresh=fresh, shared=shared)
        if parked is not None:
            return parked
        worker = await self._awaited(timeout_s, wanted, fresh=fresh, shared=shared)
        worker.limits = wanted
        return worker

    async def _awaited(self, timeout_s: float, limits: Limits, *, fresh: bool, shared: bool) -> Worker:
        """Order a worker, and wait until it or another one that will do is there."""
        if not self.alive:
            raise self.loss or ZygoteDied("the zygote has ended")
        future: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(future, limits, fresh, shared)
        self._waiters.append(waiter)
        self.order(len(self._waiters) - self._ordered)
        try:
            # Not by `wait_for`, which forgets on Python 3.11 that it was cancelled, where both come at once.
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            if _has_result(future):
                return future.result()
            # Its workers hang before their call. The next zygote may do better; this one is done.
            self.close()
            raise ZygoteDied(f"no worker got ready within {timeout_s:g} seconds") from None
        except asyncio.CancelledError:
            if _has_result(future):
                self.park(future.result())
            raise
        finally:
            # Who has left counts for no order, and is not passed over each time that a worker comes back.
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def park(self, worker: Worker, *, home_fd: int | None = None) -> Job | None:
        """Give back a worker that has answered its call, or was taken and not used.

        Args:
            worker: The worker.
            home_fd: Descriptor of the home that it may write, if there is one.

        Returns:
            What goes on in it, if anything may.
        """
        if not self.alive:
            worker.kill()
            worker.close()
            return None
        reason = why_overused(worker, self.reuse, now=time.monotonic()) if worker.calls else None
        if reason is not None:
            self.retire(worker, reason)
            return None
        job = self.parking.park(worker, begin=partial(self._job, home_fd) if worker.goes_on else None)
        # The longest waiter for a fork that may use a parked worker gets it.
        for waiter in self._waiters:
            if waiter.fresh or waiter.found.done():
                continue
            # What goes on in a worker is watched for the call that takes it: this one may be cancelled yet.
            found = self.parking.take(waiter.limits, goes_on=False, shared=waiter.shared)
            if found is not None:
                self._waiters.remove(waiter)
                waiter.found.set_result(found)
                break
        return job

    def _job(self, home_fd: int | None, worker: Worker) -> Job:
        return Job(
            worker=worker,
            zygote_pid=self.pid,
            limits=worker.limits or self.policy.limits,
            home_fd=home_fd,
            end=self.parking.end,
            reaped=self.reaped,
        )

    def jobs(self) -> list[Job]:
        """Return the jobs of workers between calls."""
        return self.parking.jobs()

    def end_jobs(self, session: str) -> None:
        """End the workers whose jobs all belong to one session."""
        for job in self.parking.jobs():
            job.worker.sessions.discard(session)
            if not job.worker.sessions:
                job.finish("session ended")

    def retire(self, worker: Worker, reason: str) -> None:
        """End a worker that is to serve no other call."""
        is_gentle = self._finishes and reason in _IN_ORDER
        if not is_gentle:
            worker.kill()
        self.note_retired(worker, reason)
        self.reap(self._finished(worker) if is_gentle else self._dismissed(worker))

    async def finish(self) -> None:
        """Let the workers that wait for calls finish, within a bound. Nobody can have them any more."""
        if self._finishes and self.alive:
            for worker in self.parking.clear():
                self.reap(self._finished(worker))
            # With those that were retired before.
            if self._reapings:
                await asyncio.wait(self._reapings, timeout=_FINISH_S)

    async def _finished(self, worker: Worker) -> None:
        """Let a worker clean up its program; kill it if that takes too long."""
        with contextlib.suppress(OSError):
            worker.connection.end_sending()
            if worker.stop_sent:
                resume_process(worker.pidfd)
            await self.reaped(worker.pid, _FINISH_S)
        worker.kill()
        worker.close()

    def note_retired(self, worker: Worker, reason: str) -> None:
        """Take note of why a worker serves no other call, where it could have."""
        if worker.calls:
            self.retired[reason] += 1
            self.tally[reason] += 1
            log.info("worker retired", extra={"pid": worker.pid, "reason": reason, "calls": worker.calls})

    def dismiss(self, count: int) -> None:
        """Let go of up to `count` parked workers."""
        self.parking.dismiss(count)

    async def _dismissed(self, worker: Worker) -> None:
        await self.reaped(worker.pid, _READY_S)
        worker.close()

    async def reaped(self, pid: int, timeout_s: float) -> str | None:
        """Wait until the zygote has reaped `pid`; return its wait status in words, if it came."""
        future = self._reaped.get(pid)
        if future is None:
            return None
        # Nobody else waits for it, so that its end may as well be set by the clock.
        patience = asyncio.get_running_loop().call_later(timeout_s, _give_up, future)
        try:
            status = await future
        finally:
            patience.cancel()
            self._reaped.pop(pid, None)
        return None if status is None else describe_status(status)

    def reap(self, reaping: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        """See a dead worker off in the background; `settled` waits for it."""
        task = asyncio.create_task(reaping)
        self._reapings.add(task)
        task.add_done_callback(self._reapings.discard)
        return task

    async def settled(self) -> None:
        """Wait until every worker that was taken is gone."""
        await asyncio.gather(*self._reapings, return_exceptions=True)

    def has_strays(self, worker: int) -> bool:
        """Return whether a call has left processes beside its worker: its children, or orphans it made.

        Orphans become children of the zygote, their nearest subreaper. A tool that times its forks
        against this look gains nothing: its processes are killed all the same, only not waited for.
        """
        try:
            orphans = children_of(self.pid) - self._reaped.keys()
            return bool(children_of(worker)) or worker in map(os.getpgid, orphans)
        except OSError:
            # Gone meanwhile, or a kernel without lists of children: better to wait than to guess.
            return True

    def ended(self, status: int) -> None:
        """Note that the forkserver has reaped this zygote and killed its orphans."""
        self._reaped_itself = True
        if self.alive:
            # Its last words, why it could not load for example, may still be on their way.
            self._control_readable()
        if self.once:
            self._note_end(_FIRST if self.policy.namespaces else self.pid, status)
        if not self._loaded.done():
            self._loaded.set_exception(
                ZygoteDied(f"the process that imported it ended with {describe_status(status)}")
            )
        self.close()

    def lost(self, error: ZygoteDied) -> None:
        """Take note that the zygote has ended with the forkserver, or is being ended with it.

        Args:
            error: Told to everybody who waits for it, and to the calls in its workers.
        """
        # The cleanup after a forkserver kills it too: its pid may be another's by now.
        self._reaped_itself = True
        self.loss = self.loss or error
        self._close(error)

    def close(self) -> None:
        """Kill the zygote and release its workers, which die with it."""
        self._close(ZygoteDied("the zygote has ended"))

    def _close(self, error: ZygoteDied) -> None:
        if not self.alive:
            return
        self.alive = False
        loop = asyncio.get_running_loop()
        for fd in (self.control.fileno(), self.parked.fileno()):
            loop.remove_reader(fd)
        self._import_output.close()
        # Until the forkserver has reaped it, its process id cannot have been given away.
        if not self._reaped_itself:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        if self._gate is not None:
            self._gate.close()
        self._exits.close()
        self.control.close()
        self.parked.close()
        os.close(self.output)
        self._fail_waiters(error)

    def _fail_waiters(self, error: ZygoteDied) -> None:
        """Fail all waiters of this zygote, and release unused workers."""
        for worker in self.parking.clear():
            worker.kill()
            worker.close()
        for waiter, *_ in self._waiters:
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
            data = self._next_message()
            if data is None:
                return
            if not data:
                # The forkserver's report of the end follows; until then there is nothing to read.
                asyncio.get_running_loop().remove_reader(self.control.fileno())
                return
            for kind, body in self._decoder.feed(data):
                self._control_frame(kind, decode(body))
        except (FrameError, KeyError, TypeError, ValueError, OverflowError) as error:
            log.warning("zygote broke the frame protocol", extra={"pid": self.pid, "fault": str(error)})
            self.close()

    def _next_message(self) -> bytes | None:
        try:
            return self.control.receive_now(1 << 18)
        except OSError:
            return b""

    def _control_frame(self, kind: FrameKind, value: object) -> None:
        if not isinstance(value, dict):
            raise FrameError("a control frame that is not an object")
        if kind is FrameKind.ENDED:
            self._note_end(int(value["pid"]), int(value["status"]))
        elif kind is FrameKind.LOADED and not self._loaded.done():
            hello = dict(value["hello"])
            self._finishes = hello.get("finishes") is True
            self._loaded.set_result(Loaded(hello=hello, threads=int(value["threads"])))
        elif kind is FrameKind.FAILED and not self._loaded.done():
            self._loaded.set_exception(_failure(value))

    def _parked_readable(self) -> None:
        # One at a time: a zygote that announces without end must not keep the host from all else.
        try:
            received = self.parked.receive_with(_ANNOUNCEMENT_BYTES)
        except OSError:
            return
        if received is None:
            return
        message, descriptors = received
        if message == GATE and len(descriptors) == 1 and self.policy.is_gated and self._gate is None:
            # Always its first message: the author's file is loaded afterwards.
            own = self.policy.home if self.policy.sockets else None
            self._gate = Gate(listener=descriptors[0], ways=self._exits, sockets=own)
            return
        if message and self._ordered > 0:
            self._deliver(self._adopt(message, descriptors))
            return
        self.closer.close(*descriptors)
        if message:
            log.warning("zygote announced unordered worker", extra={"pid": self.pid})
            self.close()
        else:
            asyncio.get_running_loop().remove_reader(self.parked.fileno())

    def _adopt(self, message: bytes, descriptors: list[int]) -> Worker | SandboxError:
        """Create a worker from an announcement, after checking its process."""
        if len(descriptors) != 2:
            self.closer.close(*descriptors)
            return _refusal(message)
        held = list(descriptors)
        try:
            pid = maker_of(descriptors[0])
            self._note_number(pid)
            pidfd = os.pidfd_open(pid)
            held.append(pidfd)
            self._check_worker(pid)
            output = own_end(descriptors[1])
        except OSError as error:
            self.closer.close(*held)
            log.warning("worker refused", extra={"zygote": self.pid, "fault": str(error)})
            return SandboxError(f"a worker ended before it was ready: {error}")
        # Now known for a pipe, of which nothing takes long.
        os.close(descriptors[1])
        # From here on its end is awaited; what ended before it was adopted interests nobody.
        self._reaped[pid] = asyncio.get_running_loop().create_future()
        connection = Connection(socket.socket(fileno=descriptors[0]), self.closer)
        # With what warming up and its lifespan took, which is not a call's.
        facts = look(pid)
        origin_bytes = 0 if facts is None else facts.data_bytes
        return Worker(pid=pid, pidfd=pidfd, connection=connection, output=output, origin_bytes=origin_bytes)

    def _note_number(self, pid: int) -> None:
        try:
            self._announced[number_inside(pid) if self.policy.namespaces else pid] = pid
        except OSError:
            # It has ended already, and is told of by a number that nobody can look up any more.
            self._unnumbered += 1
            raise

    def turn(self, worker: Worker) -> None:
        """Drop a worker's requests at the gate between two calls."""
        if self._gate is not None:
            self._gate.forget(worker.pid)
            self._names_refused(worker)

    def refused(self, worker: Worker) -> list[Denial]:
        """Return, once, the refusals of the gate for a worker and its children."""
        if self._gate is None:
            return []
        refused = [("connect", where) for where in self._gate.refused(worker.pid)]
        refused += [("lookup", name) for name in self._names_refused(worker)]
        return [Denial(operation=what, path=where, layer="kernel") for what, where in refused]

    def _names_refused(self, worker: Worker) -> list[str]:
        # What goes on between calls goes on with what it has learned.
        ask = self._exits.refused if worker.goes_on else self._exits.forget
        return ask(worker.pid)

    def _check_worker(self, pid: int) -> None:
        mine = pid == self.pid if self.once else ProcessStat.of(pid).parent == self.pid
        if not mine or os.getpgid(pid) != pid:
            raise ProcessLookupError(f"process {pid} is not a worker of zygote {self.pid}")

    def _note_end(self, number: int, status: int) -> None:
        """Note that a worker has ended, by the zygote's number for it."""
        if number not in self._announced and self._ordered > 0:
            # Perhaps it has said so and was not heard yet: the two sockets are read in any order.
            for _ in range(self._ordered):
                self._parked_readable()
        if number not in self._announced and self._unnumbered > 0:
            self._unnumbered -= 1
        elif number not in self._announced and self._ordered > 0 and status != 0:
            self._deliver(SandboxError(f"a worker ended before it was ready: {describe_status(status)}"))
        future = self._reaped.get(self._announced.pop(number, 0))
        if future is not None and not future.done():
            future.set_result(status)

    def _deliver(self, worker: Worker | SandboxError) -> None:
        """Pass the result of an order to its first waiter, or keep it."""
        self._ordered -= 1
        # A failure may have no waiter: its caller has got another worker, and each waiter gets one of
        # those that are still to come.
        is_awaited = isinstance(worker, Worker) or self._ordered < len(self._waiters)
        while is_awaited and self._waiters:
            waiter = self._waiters.popleft().found
            if waiter.done():
                continue
            if isinstance(worker, Worker):
                waiter.set_result(worker)
            else:
                waiter.set_exception(worker)
            return
        if isinstance(worker, Worker):
            self.parking.add(worker)
        # Which is not a fault where everything is being ended.
        elif self.alive:
            log.warning("worker not ready", extra={"zygote": self.pid, "fault": str(worker)})


def _device_of(home: Path | None) -> int | None:
    try:
        return None if home is None else os.stat(home).st_dev
    except OSError:
        return None


def _refusal(message: bytes) -> SandboxError:
    """Return the error of a worker that is not ready, by the message of its zygote or its own."""
    if message.startswith(NO_PROCESS):
        why = message.removeprefix(NO_PROCESS).decode(errors="replace")[:_REASON_CHARS]
        return NoProcess(f"no process could be started for a call: {why}")
    return SandboxError(message.decode(errors="replace").removeprefix("failed: ")[:_REASON_CHARS])


def _has_result(future: "asyncio.Future[Worker]") -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _give_up(future: "asyncio.Future[int | None]") -> None:
    if not future.done():
        future.set_result(None)


def _failure(value: Mapping[str, object]) -> SandboxError:
    message = str(value["message"])
    if value["fault"] == "load":
        line = value["line"]
        return LoadError(message, line if isinstance(line, int) else None)
    return ConfinementError("zygote", message)
