"""The host's side of one zygote: its loading, its parked workers, its end.

A message of a zygote can harm only the zygote's own user: the process id of a worker is read from the kernel,
and a worker must be the zygote's child and lead its own process group.
"""

import asyncio
import contextlib
import errno
import logging
import math
import os
import signal
import socket
import time
from collections import Counter, deque
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from sandbox.errors import ConfinementError, FrameError, LoadError, NoProcess, SandboxError, ZygoteDied
from sandbox.frames import CONTROL_BYTES, GATE, NO_PROCESS, Decoder, FrameKind, decode, encode
from sandbox.host.call_watch import FIRST_LOOK_S, CallWatch
from sandbox.host.closer import Closer
from sandbox.host.connection import Connection
from sandbox.host.home_usage import HomeDisk
from sandbox.host.import_output import ImportOutput
from sandbox.host.job import Job
from sandbox.host.parking import Parking
from sandbox.host.process_stat import ProcessStat
from sandbox.host.readers import Readers
from sandbox.host.retirement import Reuse, why_overused
from sandbox.host.stopping import look, resume_process
from sandbox.host.worker import Worker, children_of, maker_of, number_inside, own_end
from sandbox.loop_share import LoopShare
from sandbox.network.destinations import Destinations
from sandbox.network.egress import Egress
from sandbox.network.gate import Gate
from sandbox.outcome import Denial, Reached, describe_status
from sandbox.policy import Limits, Policy

__all__ = ["Loaded", "Zygote"]

log = logging.getLogger(__name__)

_READY_S = 30.0
_EXITED_S = 5.0
# Time for a worker to tear down its program; clients of a stdio server wait little longer before they kill
# it.
_FINISH_S = 1.5
# Reasons to retire a worker without any anomaly.
_IN_ORDER = ("age", "calls", "idle", "surplus", "drained", "session ended")
# Process id of the init process of a pid namespace, inside it.
_FIRST = 1
_ANNOUNCEMENT_BYTES = 1 << 16
# The report of a worker's end; 16 of that length are read in one turn of the event loop.
_END_BYTES = 256
_SLOWED = (
    "the tool made the server slow, and was ended with all other calls of its process: too many epoll "
    "instances watch its connection or its output"
)
_PROCESSORS = len(os.sched_getaffinity(0))
# Longest reason why a worker is not ready, for its caller and the log.
_REASON_CHARS = 4096
# Most descriptors of one user that wait to be closed.
_MOST_BEHIND = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Report of a zygote after it loaded its program.

    Attributes:
        hello: The value that the program's `load` returned.
        threads: Threads of the zygote; above one it cannot fork and only loads.
        has_children: Whether it had processes of its own then; a warm-up may start some, and ends them.
    """

    hello: Mapping[str, object]
    threads: int
    has_children: bool


class _Waiter(NamedTuple):
    """A call that found no worker parked.

    Attributes:
        found: The worker that it gets.
        limits: Its limits.
        fresh: Whether the worker must not have served a call.
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
        forkserver: Process id of its forkserver.
        policy: What it and its workers may touch.
        control: Our end of its control socket.
        parked: Where its workers announce themselves.
        output: The pipe with its output.
        once: Whether it becomes its only worker itself.
        closer: Closes descriptors received from it and its workers.
        reuse: How long its workers stay with their user.
        parking: Its idle workers.
        retired: How many workers were retired, by reason.
        tally: The counts of all zygotes so far, for metrics.
        loop_share: Event loop time used by its workers.
        oom_kills: OOM kills in its control group, at the last reading.
        loss: Why it ended, if it was not at fault.
        alive: Whether workers can still be taken.
    """

    pid: int
    forkserver: int
    policy: Policy
    control: Connection
    parked: Connection
    output: int
    once: bool
    closer: Closer = field(default_factory=Closer)
    reuse: Reuse = field(default_factory=Reuse)
    tally: Counter[str] = field(default_factory=Counter)
    loop_share: LoopShare = field(default_factory=LoopShare)
    oom_kills: int = field(init=False, default=0)
    loss: ZygoteDied | None = field(init=False, default=None)
    alive: bool = field(init=False, default=True)
    retired: Counter[str] = field(init=False, default_factory=Counter)
    _loaded: "asyncio.Future[Loaded]" = field(init=False)
    parking: Parking = field(init=False)
    _readers: Readers = field(init=False)
    _waiters: "deque[_Waiter]" = field(init=False, default_factory=deque)
    _ordered: int = field(init=False, default=0)
    _reaped: dict[int, "asyncio.Future[int | None]"] = field(init=False, default_factory=dict)
    _reapings: "set[asyncio.Task[None]]" = field(init=False, default_factory=set)
    _decoder: Decoder = field(init=False, default_factory=lambda: Decoder(CONTROL_BYTES))
    _import_output: ImportOutput = field(init=False)
    _reaped_itself: bool = field(init=False, default=False)
    # Maps a worker's pid in the zygote's pid namespace to its pid here.
    _announced: dict[int, int] = field(init=False, default_factory=dict)
    _finishes: bool = field(init=False, default=False)
    # Processes of the import, with the time each was first seen, while there are more than ordered workers.
    _strange: dict[int, float] = field(init=False, default_factory=dict)
    _unnumbered: int = field(init=False, default=0)
    _gate: Gate | None = field(init=False, default=None)
    _exits: Egress = field(init=False)

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._exits = Egress(
            share=self.loop_share,
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
        self.loop_share.slowed = self._slowed
        self._readers = Readers(self.loop_share)
        self._readers.add(self.control.fileno(), self._control_readable)
        self._readers.add(self.parked.fileno(), self._parked_readable)
        self._import_output = ImportOutput(self.output, self.loop_share)
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
        """Wait until the program is loaded, within the limits of a call.

        Raises:
            LoadError: The author's file is at fault, exceeded a limit, or took longer than `timeout_s`.
            ConfinementError: A layer could not be put in place.
            NoProcess: Its scratch folder cannot be watched.
            ZygoteDied: The zygote ended while loading.
        """
        # A load has a limit of time of its own.
        limits = replace(self.policy.limits, cpu_s=math.ceil(timeout_s) * _PROCESSORS)
        watching = asyncio.create_task(self._exceeded(limits))
        either: set[asyncio.Future[Loaded] | asyncio.Task[Reached]] = {self._loaded, watching}
        try:
            await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if self._loaded.done():
                return self._loaded.result()
            self.close()
            if not watching.done():
                raise LoadError(f"it was still being imported after {timeout_s:g} seconds (load_timeout_s)")
            reached = watching.result()
            raise LoadError(
                f"its import exceeded a limit: {reached.limit}, {reached.used} of {reached.value}"
            )
        finally:
            watching.cancel()
            # If the load ends at the same moment, an error of the watch does not matter.
            watching.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _exceeded(self, limits: Limits) -> Reached:
        """Return the first limit that the import exceeds; runs until it is cancelled otherwise.

        An import may write only its scratch folder.
        """
        await asyncio.sleep(FIRST_LOOK_S)
        with contextlib.ExitStack() as stack:
            disk = None
            if self.policy.scratch is not None:
                try:
                    folder = os.open(self.policy.scratch, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
                    stack.callback(os.close, folder)
                    disk = HomeDisk(folder)
                except OSError as error:
                    raise NoProcess(f"the import of the tool file cannot be watched: {error}") from error
            return await CallWatch(worker=self.pid, origin=self.forkserver, disk=disk, limits=limits).run()

    def order(self, count: int) -> None:
        """Order `count` more workers; they report when they are parked."""
        if count > 0 and self.alive and not self.once:
            # A worker with a waiting call does not warm up libraries. Nor does one if as many others as
            # there are processors are starting: the next call would wait for it.
            warm = not self._waiters and self._ordered < _PROCESSORS
            frame = encode(FrameKind.FORK, {"count": count, "warm": warm})
            try:
                if self.control.send_now(frame):
                    raise BlockingIOError(errno.EAGAIN, "it has left hundreds of orders unread")
            except OSError as error:
                # It is dead and not yet reported, or does not read its socket.
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
            fresh: Whether the worker must not have served a call.
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
        """Order a worker, and wait until it or another suitable one is parked."""
        if not self.alive:
            raise self.loss or ZygoteDied("the zygote has ended")
        future: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(future, limits, fresh, shared)
        self._waiters.append(waiter)
        self.order(len(self._waiters) - self._ordered)
        try:
            # Not `wait_for`: on Python 3.11 it loses a cancellation that coincides with the result.
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            if _has_result(future):
                return future.result()
            # Its workers hang before their call, so it is replaced by another zygote.
            self.close()
            raise ZygoteDied(f"no worker got ready within {timeout_s:g} seconds") from None
        except asyncio.CancelledError:
            if _has_result(future):
                self.park(future.result())
            raise
        finally:
            # A waiter that has given up must not count as an order, or be skipped for each parked worker.
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def park(self, worker: Worker, *, home_fd: int | None = None) -> Job | None:
        """Give back a worker that has answered its call, or was taken and not used.

        Args:
            worker: The worker.
            home_fd: Descriptor of the home that it may write, if there is one.

        Returns:
            Its job, if it may have one.
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
        # The longest-waiting call that may use a parked worker gets it.
        for waiter in self._waiters:
            if waiter.fresh or waiter.found.done():
                continue
            # Not one with a job: the waiting call may still be cancelled, and its job would go unwatched.
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
        """End a worker that must not serve another call."""
        is_gentle = self._finishes and reason in _IN_ORDER
        if not is_gentle:
            worker.kill()
        self.note_retired(worker, reason)
        self.reap(self._finished(worker) if is_gentle else self._dismissed(worker))

    async def finish(self) -> None:
        """Let idle workers finish, within a bound. None can be taken any more."""
        if self._finishes and self.alive:
            for worker in self.parking.clear():
                self.reap(self._finished(worker))
            # Includes workers that were retired before.
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
        """Record why a reusable worker was retired."""
        if worker.calls:
            self.retired[reason] += 1
            self.tally[reason] += 1
            log.info("worker retired", extra={"pid": worker.pid, "reason": reason, "calls": worker.calls})

    def dismiss(self, count: int) -> None:
        """Retire up to `count` parked workers."""
        self.parking.dismiss(count)

    async def _dismissed(self, worker: Worker) -> None:
        await self.reaped(worker.pid, _READY_S)
        worker.close()

    async def reaped(self, pid: int, timeout_s: float) -> str | None:
        """Wait until the zygote has reaped `pid`; return its wait status in words, or None at a timeout."""
        future = self._reaped.get(pid)
        if future is None:
            return None
        # The future has no other waiter, so a timer may settle it.
        patience = asyncio.get_running_loop().call_later(timeout_s, _give_up, future)
        try:
            status = await future
        finally:
            patience.cancel()
            self._reaped.pop(pid, None)
        return None if status is None else describe_status(status)

    def reap(self, reaping: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        """Reap a dead worker in the background; `settled` waits for it."""
        task = asyncio.create_task(reaping)
        self._reapings.add(task)
        task.add_done_callback(self._reapings.discard)
        return task

    async def settled(self) -> None:
        """Wait until every worker passed to `reap` is gone."""
        await asyncio.gather(*self._reapings, return_exceptions=True)

    def has_strays(self, worker: int) -> bool:
        """Return whether a call has left processes beside its worker: its children, or orphans it made.

        Orphans become children of the zygote, their nearest subreaper. A tool that times its forks
        against this look gains nothing: its processes are killed all the same, only not waited for.
        Processes that the import has started since it was loaded end with the zygote, which closes here.
        """
        try:
            orphans = children_of(self.pid) - self._reaped.keys()
            now, surplus = time.monotonic(), orphans if len(orphans) > self._ordered else ()
            found = filter(self._is_import_process, surplus)
            self._strange = {pid: self._strange.get(pid, now) for pid in found}
            # A worker that failed to get ready is no longer ordered, but may still be exiting.
            if sum(now - since > _EXITED_S for since in self._strange.values()) > self._ordered:
                log.warning("zygote closed: it started processes", extra={"pid": self.pid})
                self.close()
                return True
            return bool(children_of(worker)) or any(_group_of(pid) == worker for pid in orphans)
        except OSError:
            # It exited meanwhile, or a kernel without lists of children: better to wait than to guess.
            return True

    def import_processes(self) -> set[int]:
        """Return its processes that are neither announced workers nor orphans of a call."""
        with contextlib.suppress(OSError):
            return set(filter(self._is_import_process, children_of(self.pid) - self._reaped.keys()))
        return set()

    def _is_import_process(self, pid: int) -> bool:
        """Return whether a child runs that is neither an announced worker nor in the group of one."""
        with contextlib.suppress(OSError):
            # Orphans of a call stay in the group of its worker, and are killed soon after it has ended.
            is_others = self.once or _group_of(pid) in self._reaped
            return not is_others and ProcessStat.of(pid).state != b"Z"
        return False

    def ended(self, status: int) -> None:
        """Record that the forkserver has reaped this zygote and killed its orphans."""
        self._reaped_itself = True
        if self.alive:
            # Its last message, such as a load error, may still be unread.
            self._control_readable()
        if self.once:
            self._note_end(_FIRST if self.policy.namespaces else self.pid, status)
        if not self._loaded.done():
            self._loaded.set_exception(
                ZygoteDied(f"the process that imported it ended with {describe_status(status)}")
            )
        self.close()

    def lost(self, error: ZygoteDied) -> None:
        """Record that the zygote has ended with the forkserver, or is being ended with it.

        Args:
            error: Raised to its waiters and to the calls in its workers.
        """
        # The cleanup after a forkserver kills it too, so its pid may already be reused.
        self._reaped_itself = True
        self.loss = self.loss or error
        self._close(error)

    def close(self) -> None:
        """Kill the zygote and release its workers, which die with it."""
        self._close(ZygoteDied("the zygote has ended"))

    def _slowed(self) -> None:
        """End all processes that may watch the other ends of the host's sockets and pipes."""
        if self.alive:
            log.warning("zygote closed: slow system calls", extra={"pid": self.pid})
            self.loss = ZygoteDied(_SLOWED)
            self._close(self.loss)

    def _close(self, error: ZygoteDied) -> None:
        if not self.alive:
            return
        self.alive = False
        self._readers.close()
        self._import_output.close()
        # Until the forkserver has reaped it, its process id cannot be reused.
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
                # The forkserver will report the end; until then there is nothing to read.
                self._readers.remove(self.control.fileno())
                return
            for kind, body in self._decoder.feed(data):
                self._control_frame(kind, decode(body))
                # After the load, a zygote only reports the ends of workers.
                self._decoder.limit_bytes = _END_BYTES
        except (FrameError, KeyError, TypeError, ValueError, OverflowError) as error:
            log.warning("zygote broke the frame protocol", extra={"pid": self.pid, "fault": str(error)})
            self.close()

    def _next_message(self) -> bytes | None:
        try:
            return self.control.receive_now(16 * _END_BYTES if self._loaded.done() else 1 << 18)
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
            has_children = value["children"] is True
            loaded = Loaded(hello=hello, threads=int(value["threads"]), has_children=has_children)
            self._loaded.set_result(loaded)
        elif kind is FrameKind.FAILED and not self._loaded.done():
            self._import_output.close()
            self._loaded.set_exception(_failure(value, self._import_output.last_line))
        else:
            raise FrameError(f"an unexpected control frame of kind {kind.name}")

    def _parked_readable(self) -> None:
        # One at a time: a zygote that announces without end must not block the event loop.
        try:
            received = self.parked.receive_with(_ANNOUNCEMENT_BYTES)
        except OSError:
            return
        if received is None:
            return
        message, descriptors = received
        if message == GATE and len(descriptors) == 1 and self.policy.is_gated and self._gate is None:
            # Always its first message: the tool file is loaded afterwards.
            own = self.policy.home if self.policy.sockets else None
            self._gate = Gate(listener=descriptors[0], ways=self._exits, share=self.loop_share, sockets=own)
            return
        if message and self._ordered > 0:
            self._deliver(self._adopt(message, descriptors))
            return
        self.closer.close(*descriptors)
        if message:
            log.warning("zygote announced unordered worker", extra={"pid": self.pid})
            self.close()
        else:
            self._readers.remove(self.parked.fileno())

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
            mine = pid == self.pid if self.once else ProcessStat.of(pid).parent == self.pid
            if not mine or _group_of(pid) != pid:
                raise ProcessLookupError(f"process {pid} is not a worker of zygote {self.pid}")
            output = own_end(descriptors[1])
        except OSError as error:
            self.closer.close(*held)
            log.warning("worker refused", extra={"zygote": self.pid, "fault": str(error)})
            return SandboxError(f"a worker ended before it was ready: {error}")
        # It is known to be a pipe by now, which closes quickly.
        os.close(descriptors[1])
        # From here on its exit is recorded; exits before the adoption are ignored.
        self._reaped[pid] = asyncio.get_running_loop().create_future()
        connection = Connection(socket.socket(fileno=descriptors[0]), self.closer, self.loop_share)
        # Includes memory of warm-up and lifespan, which does not count for a call.
        facts = look(pid)
        origin_bytes = 0 if facts is None else facts.data_bytes
        return Worker(pid=pid, pidfd=pidfd, connection=connection, output=output, origin_bytes=origin_bytes)

    def _note_number(self, pid: int) -> None:
        try:
            self._announced[number_inside(pid) if self.policy.namespaces else pid] = pid
        except OSError:
            # It has ended already, and its reported pid can no longer be mapped.
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
        # A job keeps the resolved names and connections of its worker between calls.
        return (self._exits.refused if worker.goes_on else self._exits.forget)(worker.pid)

    def _note_end(self, number: int, status: int) -> None:
        """Record that a worker has ended, by its pid in the zygote's namespace."""
        if number not in self._announced and self._ordered > 0:
            # Its announcement may still be unread: the two sockets are read in any order.
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
        # A failure may have no waiter: its caller got another worker, and enough orders are pending for
        # all waiters.
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
        # During shutdown this is not a fault.
        elif self.alive:
            log.warning("worker not ready", extra={"zygote": self.pid, "fault": str(worker)})


def _group_of(pid: int) -> int | None:
    """Return the process group of a process, none once it was reaped."""
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(pid)
    return None


def _device_of(home: Path | None) -> int | None:
    with contextlib.suppress(OSError):
        return os.stat(home).st_dev if home else None
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


def _failure(value: Mapping[str, object], last_line: str) -> SandboxError:
    message = str(value["message"])[:_REASON_CHARS]
    if value["fault"] == "load":
        if value["is_exit"] is True and last_line:
            message += f"; its last output: {last_line[:_REASON_CHARS]}"
        line = value["line"]
        return LoadError(message, line if isinstance(line, int) else None)
    return ConfinementError("zygote", message)
