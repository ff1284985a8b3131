"""Parked workers: new ones, and used ones that stay with their user.

A worker that has answered is stopped within milliseconds, checked, and given the limits of its next call. It
returns only to its own pool: the same user, policy, program and home. Any anomaly retires it: it is killed,
and reaped by its zygote. The most recently used worker is taken first, so that a user with one call at a time
always gets the same process.
"""

import asyncio
import select
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from sandbox.frames import FrameKind, encode
from sandbox.host.descriptors import open_in
from sandbox.host.home_usage import OpenFiles, open_files
from sandbox.host.job import Job
from sandbox.host.output import drop_output
from sandbox.host.retirement import Reuse, holds_too_many, why_over, why_unfit
from sandbox.host.stopping import STOPPED, WorkerFacts, is_stopped, look, resume_process, stop_process
from sandbox.host.usage import has_room
from sandbox.host.worker import Worker
from sandbox.layers.rlimits import renew
from sandbox.policy import Limits

__all__ = ["Parking", "same_limits"]

# Delay of the stop, so that an immediate next call does not pay for stopping and continuing.
_AWAKE_S = 0.008
_STOPPING_S = 0.001
# A worker not stopped by then waits for something, such as a disk.
_STOPPED_S = 0.05
# On an overloaded machine, a thread takes seconds to reach the point where it stops.
_STOPS_S = 10.0
# A worker's use in this time is small compared with its smallest limit, except for descriptors.
_LOOK_S = 0.01
_TIDY_S = 30.0


@dataclass(slots=True, kw_only=True, eq=False)
class Parking:
    """The idle workers of one zygote.

    Attributes:
        reuse: How long a worker stays.
        raises_limits: Whether this process may set hard limits of a worker from outside.
        has_strays: Returns whether a worker has other processes beside it.
        retire: Ends a worker, for a reason.
        device: Number of the file system that the user's home is on, if the workers have one.
        idle: The workers, in order of last use.
    """

    reuse: Reuse
    raises_limits: bool
    has_strays: Callable[[int], bool]
    retire: Callable[[Worker, str], None]
    device: int | None = None
    idle: deque[Worker] = field(init=False, default_factory=deque)
    _jobs: dict[Worker, Job] = field(init=False, default_factory=dict)
    _stopping: asyncio.TimerHandle | None = field(init=False, default=None)
    _all_at: float = field(init=False, default=0.0)
    _tidying: asyncio.TimerHandle | None = field(init=False, default=None)

    def add(self, worker: Worker) -> None:
        """Add a worker that has served no call, behind those that have."""
        self.idle.appendleft(worker)

    def park(self, worker: Worker, *, begin: Callable[[Worker], Job] | None = None) -> Job | None:
        """Take back a worker that has answered, or was not used after all.

        Args:
            worker: The worker.
            begin: Creates its job, if it runs between calls.

        Returns:
            Its job, if it may have one.
        """
        worker.idle_since = time.monotonic()
        self.idle.append(worker)
        if begin is not None:
            self._retire_if(worker, self._let_go_on(worker, begin))
        elif worker.calls:
            self._stop_soon(_AWAKE_S)
        if worker.calls and self._tidying is None:
            self._tidying = asyncio.get_running_loop().call_later(_TIDY_S, self._tidy)
        return self._jobs.get(worker)

    def take(
        self, limits: Limits, *, fresh: bool = False, goes_on: bool = True, shared: bool = False
    ) -> Worker | None:
        """Return the most recently used worker that may serve a call; None if there is none.

        A worker set apart goes first, so that the next call finds the state that a call left in it.

        Args:
            limits: The limits of the call.
            fresh: Whether the worker must not have served a call.
            goes_on: Whether a worker with a job between calls is acceptable.
            shared: Whether it is to serve several calls at once.
        """
        # A user's next call prefers a worker that a call has changed, then one with a job.
        # Workers to use first have the greatest keys; equal ones keep their order.
        waiting = sorted(self.idle, key=attrgetter("is_apart", "goes_on"))
        for worker in reversed(waiting):
            # Limits narrowed for another tool cannot be widened again.
            is_other = fresh or worker.is_shared != shared
            if worker.calls and (is_other or not same_limits(worker.limits, limits)):
                continue
            if worker.goes_on and not goes_on:
                continue
            self._leave(worker)
            if worker.calls:
                reason = why_over(worker, self.reuse, now=time.monotonic()) or self._wake(worker)
            else:
                reason = None if worker.is_running() else "ended"
            if reason is None:
                worker.limits = limits
                return worker
            self.retire(worker, reason)
        return None

    def top_up(self, worker: Worker) -> None:
        """Add the processor time of a joining call to a worker; its calls share one memory limit."""
        facts = look(worker.pid)
        if facts is not None and worker.limits is not None:
            self._renew(worker, facts, worker.limits, data_bytes=worker.data_bytes or worker.origin_bytes)

    def end(self, worker: Worker, reason: str) -> None:
        """End an idle worker."""
        if worker in self.idle:
            self._retire_if(worker, reason)

    def dismiss(self, count: int) -> None:
        """Retire up to `count` workers without a job, least preferred first."""
        spare = [worker for worker in self.idle if not worker.goes_on]
        for worker in spare[: max(0, count)]:
            self._retire_if(worker, "surplus")

    def clear(self) -> list[Worker]:
        """Remove and return all workers."""
        for timer in (self._stopping, self._tidying):
            if timer is not None:
                timer.cancel()
        workers = list(self.idle)
        for worker in workers:
            self._leave(worker)
        return workers

    def jobs(self) -> list[Job]:
        """Return the jobs of the workers."""
        return list(self._jobs.values())

    def _let_go_on(self, worker: Worker, begin: Callable[[Worker], Job]) -> str | None:
        """Start a worker's job, within the limits of a call; return the reason if it may not run."""
        reason = self._inspect(worker)
        if reason is None and worker.renewal is not None:
            reason = _renewed(worker, worker.renewal)
        if reason is None:
            try:
                job = self._jobs[worker] = begin(worker)
                job.begin()
                resume_process(worker.pidfd)
            except OSError:
                return "ended"
            worker.stop_sent = worker.has_stopped = False
        return reason

    def _wake(self, worker: Worker) -> str | None:
        """Make a worker ready for its next call; return the reason if it may not serve it."""
        if worker.goes_on:
            reason = self._inspect(worker)
        elif worker.has_stopped:
            facts = look(worker.pid)
            if facts is None or facts.state != STOPPED:
                return "ended" if facts is None else "continued"
            reason = "spoke" if _has_spoken(worker) else None
        else:
            reason = self._inspect(worker)
        if reason is None:
            # Output after the answer belongs to no call.
            drop_output(worker.output, worker.connection.share)
            if worker.stop_sent:
                worker.stop_sent = worker.has_stopped = False
                try:
                    resume_process(worker.pidfd)
                except OSError:
                    return "ended"
        return reason

    def _stop_soon(self, delay_s: float) -> None:
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().call_later(delay_s, self._stop)

    def _stop(self) -> None:
        """Stop the workers that are due, and check those that have stopped."""
        self._stopping = None
        now = time.monotonic()
        looks_at_all = now >= self._all_at
        if looks_at_all:
            self._all_at = now + _AWAKE_S / 2
        for worker in self._restless():
            if worker in self.idle and (looks_at_all or _is_stopping(worker, now)):
                self._retire_if(worker, self._bring_to_rest(worker, now))
        restless = self._restless()
        if restless:
            # A signalled worker usually stops at once, so it is checked again soon.
            stopping = any(_is_stopping(worker, now) for worker in restless)
            self._stop_soon(_STOPPING_S if stopping else max(_STOPPING_S, self._all_at - now))

    def _restless(self) -> list[Worker]:
        return [worker for worker in self.idle if worker.calls and not (worker.has_stopped or worker.goes_on)]

    def _bring_to_rest(self, worker: Worker, now: float) -> str | None:
        waited_s = now - worker.idle_since
        if not worker.stop_sent and waited_s >= _AWAKE_S / 2:
            try:
                stop_process(worker.pidfd)
            except OSError:
                return "ended"
            worker.stop_sent = True
        if worker.stop_sent and is_stopped(worker.pid):
            worker.has_stopped = True
            return self._inspect(worker) or self._why_unwelcome(worker)
        if not worker.is_running():
            return "ended"
        return "not stopped" if waited_s > _STOPS_S else None

    def _why_unwelcome(self, worker: Worker) -> str | None:
        if self.has_strays(worker.pid):
            return "left a process"
        return None if has_room() else "no room"

    def _inspect(self, worker: Worker) -> str | None:
        """Check a worker between two calls and renew its limits; return the reason to retire it, if any."""
        if _has_spoken(worker):
            return "spoke"
        if not worker.goes_on and worker.limits and holds_too_many(open_in(worker.pid), worker.limits):
            return "descriptors"
        was_seen = time.monotonic() - worker.looked_at < _LOOK_S
        if was_seen and not (worker.has_stopped or worker.was_long or worker.goes_on):
            # Its limits were renewed at that check.
            return None if worker.is_running() else "ended"
        facts = look(worker.pid)
        # Checked by its pid, which is not reused until it has been reaped.
        if facts is None or worker.limits is None or not worker.is_running():
            return "ended"
        if worker.goes_on:
            # A call and the job share the limits of one call.
            return self._renew(worker, facts, worker.limits, data_bytes=worker.origin_bytes)
        # The slowest check: it is skipped if the next call immediately follows a short one.
        asks = worker.has_stopped or worker.was_long
        held = open_files(worker.pid, self.device) if asks else OpenFiles()
        reason = why_unfit(
            facts,
            worker.limits,
            origin_bytes=worker.origin_bytes,
            descriptors=held.descriptors,
            unnamed_bytes=held.unnamed_bytes,
        )
        if reason is None:
            reason = self._renew(worker, facts, worker.limits, data_bytes=facts.data_bytes)
        if reason is None:
            worker.looked_at = time.monotonic()
        return reason

    def _renew(self, worker: Worker, facts: WorkerFacts, limits: Limits, *, data_bytes: int) -> str | None:
        """Give a worker the processor time and memory of its next call; return a reason to retire it, if any.

        A host that may not set them from outside has the worker set them; `CallWatch` bounds the rest.
        """
        worker.cpu_before_s, worker.data_bytes, worker.renewal = facts.cpu_s, data_bytes, None
        if not self.raises_limits:
            worker.renewal = {"cpu_s": facts.cpu_s, "data_bytes": data_bytes}
            return None
        try:
            renew(worker.pid, limits, cpu_s=facts.cpu_s, data_bytes=data_bytes)
        except OSError:
            return "ended"
        return None

    def _tidy(self) -> None:
        """Retire expired workers."""
        self._tidying = None
        for worker in tuple(self.idle):
            if worker.calls:
                reason = why_over(worker, self.reuse, now=time.monotonic())
                self._retire_if(worker, reason or (None if has_room() else "no room"))
        if any(worker.calls for worker in self.idle):
            self._tidying = asyncio.get_running_loop().call_later(_TIDY_S, self._tidy)

    def _retire_if(self, worker: Worker, reason: str | None) -> None:
        # Checking a worker may close the zygote, which releases all parked workers.
        if reason is not None and worker in self.idle:
            self._leave(worker)
            self.retire(worker, reason)

    def _leave(self, worker: Worker) -> None:
        self.idle.remove(worker)
        job = self._jobs.pop(worker, None)
        if job is not None:
            job.stop()


def _is_stopping(worker: Worker, now: float) -> bool:
    """Return whether a stop signal is so recent that it may not have taken effect yet."""
    return worker.stop_sent and now - worker.idle_since < _STOPPED_S


def _renewed(worker: Worker, used: Mapping[str, object]) -> str | None:
    """Renew the limits inside a worker; return the reason to retire it, if it does not respond."""
    try:
        left = worker.connection.send_now(encode(FrameKind.RENEW, used))
    except OSError:
        return "ended"
    return "deaf" if left else None


def same_limits(mine: Limits | None, wanted: Limits) -> bool:
    """Return whether a worker's kernel limits are those that a call wants."""
    return mine is not None and (
        # Usually they are those that a tool's settings give each call.
        mine is wanted or _of_kernel(mine) == _of_kernel(wanted)
    )


def _of_kernel(limits: Limits) -> tuple[int, ...]:
    return limits.memory_bytes, limits.cpu_s, limits.file_bytes, limits.open_files


def _has_spoken(worker: Worker) -> bool:
    """Return whether an idle worker sent data or closed its connection."""
    poll = select.poll()
    poll.register(worker.connection, select.POLLIN | select.POLLRDHUP)
    return bool(poll.poll(0))
