"""The right to one worker for one call.

`Lease.run` sends the call, carries frames both ways, applies the ladder and the limits, and returns how
it ended. A worker that has answered in order, and may stay with its user, stays alive; all processes of any
other call have been sent SIGKILL when `run` returns. `Lease.at_rest` returns when no process of the call
executes an instruction: each is stopped or dead. Only then are outputs read. `Lease.release` gives back a
worker that stays; until its next call it is stopped, or continues as a job. No fault of a worker makes them
raise.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field

from sandbox.deadlines import Deadlines, Ladder, Rung
from sandbox.errors import FrameError, FrameTooLong
from sandbox.frames import ANSWERS, MOST_VALUES, Decoder, FrameKind, decode, encode
from sandbox.host.call_watch import FIRST_LOOK_S, CallWatch, behind_death, too_many_tasks
from sandbox.host.connection import Connection
from sandbox.host.home_usage import HomeDisk
from sandbox.host.job import Job
from sandbox.host.listener_relay import Listener, ListenerRelay
from sandbox.host.output import KeptOutput
from sandbox.host.readers import Readers
from sandbox.host.stopping import stop_process, wait_until_stopped
from sandbox.host.usage import Process, oom_kills, processes_of, read_process
from sandbox.host.worker import Worker
from sandbox.host.zygote import Zygote
from sandbox.outcome import Denial, Ending, Outcome, Reached
from sandbox.policy import Limits

__all__ = ["REAP_S", "Lease", "Listener"]

log = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 16
# A longer answer is read in a thread.
_LONG_BYTES = 256 * 1024
# One chunk may be ten thousand frames; the clock must run meanwhile.
_FRAMES_A_TURN = 100
_TURN_S = 0.005
# Most bytes of pending notifications and requests of one call; its answer is not included.
_NOTICE_BYTES = 8 * 1024 * 1024
# More values than session state can hold. Decoding them blocks the event loop.
_NOTICE_VALUES = 600_000
# Time to read the last frames of a dead worker.
_LAST_WORDS_S = 1.0
# A thread inside the kernel may take a moment to stop; a slower one is not waited for.
_STOP_S = 2.0
REAP_S = 20.0
"""Seconds until a killed worker is reaped, on an overloaded machine."""

_ENDS = {Rung.IDLE_END: Ending.IDLE_TIMEOUT, Rung.TOTAL_END: Ending.TOTAL_TIMEOUT}
_MAX_DENIALS = 100


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Lease:
    """One worker, for one call.

    Attributes:
        zygote: The zygote of the worker.
        worker: The worker.
        limits: The limits of the call.
        narrows: Whether they are narrower than those the worker was made with.
        home_fd: Descriptor of the home that it may write, if there is one.
        measured: Whether to measure the worker once more as its call ends.
        keeps: Whether the worker may stay with its user after an orderly answer.
        goes_on: Whether background work and processes of the call may then run until the next one.
        session: The session in which it was called, if there is one.
    """

    zygote: Zygote
    worker: Worker
    limits: Limits
    narrows: bool = False
    home_fd: int | None = None
    measured: bool = False
    keeps: bool = False
    goes_on: bool = False
    session: str | None = None
    # Random, so that it cannot be guessed before the call.
    _number: int = field(init=False, default_factory=lambda: int.from_bytes(os.urandom(7)) >> 3)
    _stays: bool = field(init=False, default=False)
    _is_unused: bool = field(init=False, default=True)
    _ladder: Ladder = field(init=False)
    _denials: dict[Denial, None] = field(init=False, default_factory=dict)
    _output: KeptOutput = field(init=False)
    _answer: Mapping[str, object] | None = field(init=False, default=None)
    _answer_bytes: int = field(init=False, default=0)
    _is_ready: bool = field(init=False, default=False)
    _unread: tuple[FrameKind, bytes] | None = field(init=False, default=None)
    _fault: str | None = field(init=False, default=None)
    _reached: Reached | None = field(init=False, default=None)
    _disk: HomeDisk | None = field(init=False, default=None)
    _watcher: CallWatch | None = field(init=False, default=None)
    _watching: "asyncio.Task[None] | None" = field(init=False, default=None)
    _over: "asyncio.Future[Ending]" = field(init=False)
    _listener: Listener = field(init=False)
    _decoder: Decoder = field(init=False)
    _readers: Readers | None = field(init=False, default=None)
    _alarm: asyncio.TimerHandle | None = field(init=False, default=None)
    _is_behind: bool = field(init=False, default=False)
    _look_at: float = field(init=False, default=0.0)
    _has_started: bool = field(init=False, default=True)
    _is_dead: bool = field(init=False, default=False)
    _sender: "asyncio.Task[None] | None" = field(init=False, default=None)
    _relay: ListenerRelay | None = field(init=False, default=None)
    _reaping: "asyncio.Task[None] | None" = field(init=False, default=None)
    _status: str | None = field(init=False, default=None)
    _at_last: Process | None = field(init=False, default=None)
    _cpu_before_s: float = field(init=False, default=0.0)
    _connection: Connection = field(init=False)

    def __post_init__(self) -> None:
        self._connection = self.worker.connection
        self._output = KeptOutput(
            pipe=self.worker.output, share=self.zygote.loop_share, most_bytes=self.limits.output_bytes
        )

    @property
    def zygote_pid(self) -> int:
        """Process id of its worker's zygote."""
        return self.zygote.pid

    def printed_since(self, mark: int) -> tuple[bytes, int]:
        """Return the kept output after its first `mark` bytes, and the total number of bytes."""
        return self._output.since(mark)

    async def run(self, call: object, *, deadlines: Deadlines, listener: Listener) -> Outcome:
        """Run one call to its end.

        If this coroutine is cancelled, the worker is killed before the cancellation propagates.
        It waits until the worker is reaped, unless the call answered and left no other process behind.
        """
        started = time.monotonic()
        self._is_unused = False
        self._ladder = Ladder(deadlines, now=started)
        self._look_at = started + FIRST_LOOK_S
        self._over = asyncio.get_running_loop().create_future()
        self._listener = listener
        self._decoder = Decoder(self.limits.frame_bytes, notice_bytes=_NOTICE_BYTES)
        if self.worker.calls:
            self._take_turn()
        else:
            self.worker.first_called = started
        self.worker.calls += 1
        self._cpu_before_s = self.worker.cpu_before_s
        if self.goes_on:
            self.worker.goes_on = True
            self.worker.sessions.add(self.session)
        ending: Ending | None = None
        try:
            try:
                self._disk = None if self.home_fd is None else HomeDisk(self.home_fd)
                self._begin(call)
                ending = await self._over
                if self._unread is not None and ending is Ending.ANSWERED:
                    await self._read_long(*self._unread)
            finally:
                if self._alarm is not None:
                    self._alarm.cancel()
                if self._readers is not None:
                    self._readers.close()
            if ending is Ending.ANSWERED and self._relay is not None:
                await self._relay.drain()
        finally:
            # No await here: a cancelled caller may not run again.
            if self.measured:
                self._at_last = read_process(self.worker.pid)
            is_telling = self._relay is not None and self._relay.tell_no_more()
            # Notices undelivered by now stay undelivered.
            untold = 0 if self._relay is None else self._relay.untold
            left_others = self._keep_or_kill(ending, is_telling=is_telling)
        if ending is Ending.ANSWERED and self._answer is None:
            ending = Ending.BROKE_PROTOCOL if self._fault else Ending.CRASHED
        if ending is not Ending.ANSWERED or left_others:
            await self._settled()
        if ending is Ending.CRASHED and self._reached is None:
            self._reached = self._limit_behind_death()
        if ending in (Ending.ANSWERED, Ending.CRASHED) and self._reached is not None:
            ending = Ending.OVER_LIMIT
        peaks = [] if self._watcher is None else [self._watcher.peak_bytes]
        if self._at_last is not None:
            peaks.append(self._at_last.resident_bytes)
        denials = tuple(self._denials)
        if refused := self.zygote.refused(self.worker):
            reported = {denial.path for denial in denials}
            # The gate reports the name alone; the worker reported it with the port.
            reported |= {path.rpartition(":")[0] for path in reported}
            denials += tuple(denial for denial in dict.fromkeys(refused) if denial.path not in reported)
        return Outcome(
            ending=ending,
            answer=self._answer if ending is Ending.ANSWERED else None,
            answer_bytes=self._answer_bytes if ending is Ending.ANSWERED else 0,
            may_have_started=self._has_started or ending is not Ending.CRASHED,
            status=self._status,
            cause=self._cause() if ending is Ending.CRASHED else None,
            fault=self._fault,
            reached=self._reached,
            memory_peak_bytes=max(peaks, default=None),
            cpu_s=None if self._at_last is None else self._at_last.cpu_s - self._cpu_before_s,
            denials=denials,
            output=self._output.text(),
            elapsed_s=time.monotonic() - started,
            untold=untold,
        )

    def _take_turn(self) -> None:
        """Attribute earlier requests at the gate to the previous call."""
        self.zygote.turn(self.worker)

    def _cause(self) -> str | None:
        """Return why the worker ended, unless the call itself is at fault."""
        return str(self.zygote.loss) if self.zygote.loss else None

    async def _settled(self) -> None:
        """Wait until no process of a call that ended out of order is running."""
        await self.at_rest()

    def exceeds(self, reached: Reached) -> None:
        """End the call for a limit that another check found exceeded."""
        if not self._over.done():
            self._reached = reached
            self._end(Ending.OVER_LIMIT)

    def _keep_or_kill(self, ending: Ending | None, *, is_telling: bool) -> bool:
        """Keep or kill the worker; return whether the call has left processes beside it."""
        left_others = not self.worker.goes_on and self.zygote.has_strays(self.worker.pid)
        if left_others or self._watcher is not None:
            # A burst between two looks, as on an overloaded machine.
            self._reached = self._reached or too_many_tasks(self.worker.pid, self.zygote.pid, self.limits)
        self._stays = self.keeps and not left_others and self._is_orderly(ending)
        if self._stays:
            self.worker.was_long = self._watcher is not None
            self._output.read_all()
            if self._sender or is_telling or self._watching:
                self._reaping = self.zygote.reap(self._end_tasks(self._relay))
            # Lease and relay refer to each other: a cycle for the garbage collector.
            self._relay = None
        else:
            # It answered while the call still runs: its next call would wait for ever.
            disorder = "disorder" if self._answer is None or self._is_ready else "not ready"
            self._give_up_worker("left a process" if left_others else disorder)
        return left_others

    def _is_orderly(self, ending: Ending | None) -> bool:
        """Return whether a ready worker has answered, with nothing of its call in flight."""
        return (
            ending is Ending.ANSWERED
            and self._is_ready
            and self._fault is None
            and self._reached is None
            and not self._is_dead
            and not self._decoder.partial
            and not (self._relay is not None and self._relay.is_answering)
            and (self._sender is None or self._sender.done())
        )

    def _give_up_worker(self, reason: str) -> "asyncio.Task[None]":
        self._stays = False
        if self.keeps:
            self.zygote.note_retired(self.worker, reason)
        self.worker.kill()
        self._reaping = reaping = self.zygote.reap(self._reap())
        return reaping

    async def at_rest(self) -> None:
        """Wait until no process of the call executes an instruction: stopped, or not alive."""
        if self._stays and not self.worker.stop_sent:
            await self._stop()
        elif not self._stays and self._reaping is not None:
            await asyncio.shield(self._reaping)

    async def _stop(self) -> None:
        """Stop the worker; end it if it does not stop, or has another process after all."""
        stands = await self._stands(has_others=self.worker.goes_on)
        # It may have forked between the answer and the stop.
        if not stands or (not self.worker.goes_on and self.zygote.has_strays(self.worker.pid)):
            await asyncio.shield(self._give_up_worker("left a process" if stands else "not stopped"))

    async def _stands(self, *, has_others: bool) -> bool:
        """Stop the worker and its other processes, if any are allowed; return whether it has stopped."""
        with contextlib.suppress(OSError):
            stop_process(self.worker.pidfd)
            # Set before the stop takes effect: a caller that does not wait must still continue the worker.
            self.worker.stop_sent = True
            others = self._beside if has_others else tuple
            return await wait_until_stopped(self.worker.pid, timeout_s=_STOP_S, others=others)
        return False

    def _beside(self) -> Iterator[int]:
        """Yield the other processes of a worker that keeps running."""
        for pid in processes_of(self.worker.pid, self.zygote.pid):
            if pid != self.worker.pid:
                yield pid

    async def retire(self, reason: str) -> None:
        """End a worker that was to stay, and wait until no process of the call is alive.

        A worker whose call never began is parked again.
        """
        if self._is_unused:
            self._is_unused = False
            self._give_back_unused(reason)
        elif self._stays:
            self._give_up_worker(reason)
        await self.at_rest()

    def _give_back_unused(self, reason: str) -> None:
        if self.worker.goes_on:
            # Its background work was watched only until the worker was taken.
            self._give_up_worker(reason)
        else:
            self.zygote.park(self.worker, home_fd=self.home_fd)

    async def abandon(self) -> None:
        """Return the worker of an abandoned call, and wait until nothing of the call runs."""
        await self.retire("abandoned")

    def set_apart(self) -> None:
        """Make later calls of the pool prefer this worker, as long as it stays."""
        self.worker.is_apart = True

    def release(self) -> Job | None:
        """Give back a worker that stays; nothing of its call is read from now on.

        Returns:
            The worker's job until its next call, if it may have one.
        """
        if not self._stays:
            return None
        self._stays = False
        return self.zygote.park(self.worker, home_fd=self.home_fd)

    def _begin(self, call: object) -> None:
        """Send the call, and watch frames, output, exit and deadlines until `_over` is settled."""
        self._readers = readers = Readers(self.zygote.loop_share)
        self._climb()
        self._attend(readers)
        try:
            lasts = {"goes_on": True} if self.goes_on else {}
            frame = encode(FrameKind.CALL, {"number": self._number, "call": call, **lasts})
            left = self._hand_over(frame)
        except (OSError, ValueError, RecursionError) as error:
            # Also for arguments that are not JSON: a client may send NaN, or nest them too deeply.
            # A send to an ended worker fails before the kernel accepts any byte. After other errors the
            # worker may have read the call, perhaps with MSG_PEEK, and a second try could run it twice.
            self._has_started = not isinstance(error, ConnectionError)
            self._give_up(error)
            return
        if left:
            self._sender = asyncio.create_task(self._send_rest(left, readers))
        else:
            readers.add(self._connection.fileno(), self._hear)

    def _attend(self, readers: Readers) -> None:
        """Register readers of the worker's output and exit."""
        readers.add(self.worker.output, self._output_readable)
        readers.add(self.worker.pidfd, self._died)

    def _hand_over(self, frame: bytes) -> memoryview:
        """Send the frames that must precede the call, then the call; return the unsent rest."""
        return self._connection.send_now(self._narrowing() + frame)

    async def _send_rest(self, left: memoryview, readers: Readers) -> None:
        try:
            await self._connection.send_all(left)
        except OSError as error:
            self._give_up(error)
        else:
            readers.add(self._connection.fileno(), self._hear)

    def _end(self, ending: Ending) -> None:
        """Settle how the call ends, unless that is already settled."""
        if not self._over.done():
            self._over.set_result(ending)

    def _give_up(self, error: Exception) -> None:
        """End a call whose worker no longer receives or sends."""
        log.debug("worker connection ended", extra={"fault": str(error)})
        self._end(Ending.ANSWERED)

    def _died(self) -> None:
        """Wait a little longer: a finished call must not be reported as a crash."""
        if self._readers is not None:
            self._readers.remove(self.worker.pidfd)
            # The rest of its frames is finite, and may include its answer.
            self._readers.hurry()
        # A child left behind may hold the socket open until its process group is killed.
        self.worker.kill()
        self._is_dead = True
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._end, Ending.ANSWERED)

    def _climb(self) -> None:
        """Check the worker if due, notify of the rungs that silence has reached, and set the timer."""
        if self._alarm is not None:
            self._alarm.cancel()
        now = time.monotonic()
        if self._watcher is None and now >= self._look_at:
            self._begin_to_watch()
        wakes_at = self._ladder.wakes_at()
        if now >= wakes_at:
            for rung in self._ladder.climb(now):
                if rung in _ENDS:
                    self._end(_ENDS[rung])
                    return
                self._listener_relay().offer(rung)
            wakes_at = self._ladder.wakes_at()
        if self._watcher is None:
            wakes_at = min(wakes_at, self._look_at)
        self._alarm = asyncio.get_running_loop().call_later(wakes_at - now, self._climb)

    def _hear(self) -> bool:
        """Handle a bounded number of frames; return whether more are left until other tasks have run."""
        if self._over.done():
            return False
        began, data = time.monotonic(), b""
        try:
            if not self._is_behind:
                received = self._connection.receive_now(_CHUNK_BYTES)
                if received == b"":
                    self._end(Ending.ANSWERED)
                data = received or b""
            self._is_behind = False
            for number, (kind, body) in enumerate(self._decoder.feed(data), start=1):
                if kind in ANSWERS and len(body) > _LONG_BYTES:
                    self._unread = kind, body
                    self._end(Ending.ANSWERED)
                    break
                values = MOST_VALUES if kind in ANSWERS else _NOTICE_VALUES
                self._frame(kind, decode(body, most_values=values), len(body))
                if kind in ANSWERS:
                    self._end(Ending.ANSWERED)
                    break
                if number == _FRAMES_A_TURN or time.monotonic() - began > _TURN_S:
                    self._is_behind = True
                    break
        except OSError as error:
            self._give_up(error)
        except FrameError as error:
            self._break(error)
        return self._is_behind

    async def _read_long(self, kind: FrameKind, body: bytes) -> None:
        """Read an answer in a thread, since it would block other calls for too long."""
        try:
            value = await asyncio.to_thread(decode, body, most_values=MOST_VALUES)
            self._frame(kind, value, len(body))
        except FrameError as error:
            self._break(error)

    def _break(self, error: FrameError) -> None:
        """End a call whose worker breaks the protocol."""
        self._fault = str(error)
        if isinstance(error, FrameTooLong) and error.limit_bytes == self.limits.frame_bytes:
            self._reached = Reached(limit="frame_bytes", value=error.limit_bytes, used=error.length)
        self._end(Ending.ANSWERED)

    def _narrowing(self) -> bytes:
        """Return the frame with the worker's new limits, if they change."""
        if self.worker.calls > 1:
            # Its limits were set with its first call, and it serves only calls with these limits.
            return b"" if self.worker.renewal is None else encode(FrameKind.RENEW, self.worker.renewal)
        return encode(FrameKind.LIMITS, asdict(self.limits)) if self.narrows else b""

    def _begin_to_watch(self) -> None:
        self._watcher = CallWatch(
            worker=self.worker.pid,
            origin=self.zygote.pid,
            disk=self._disk,
            limits=self.limits,
            cpu_before_s=self._cpu_before_s,
        )
        self._watching = asyncio.create_task(self._look_after(self._watcher))

    async def _look_after(self, watcher: CallWatch) -> None:
        self._reached = await watcher.run()
        self._end(Ending.OVER_LIMIT)

    def _limit_behind_death(self) -> Reached | None:
        last = None if self._watcher is None else self._watcher.last
        before, self.zygote.oom_kills = self.zygote.oom_kills, oom_kills(self.zygote.pid)
        oom_killed = self.zygote.oom_kills > before
        return behind_death(self._status, last, self.limits, oom_killed=oom_killed)

    def _frame(self, kind: FrameKind, value: object, size: int) -> None:
        if not isinstance(value, dict):
            raise FrameError("a frame that is not an object")
        match kind:
            case FrameKind.ANSWER:
                self._answer, self._answer_bytes = value, size
            case FrameKind.ANSWER_AND_READY:
                answer = value.get("answer")
                # The number rejects an answer of an earlier call whose end was forged.
                if value.get("number") != self._number or not isinstance(answer, dict):
                    raise FrameError("an answer to another call")
                self._answer, self._answer_bytes = answer, size
                self._is_ready = True
            case FrameKind.NOTIFY:
                self._ladder.progress(time.monotonic())
                self._listener_relay().offer(value, size)
            case FrameKind.REQUEST:
                self._listener_relay().ask(value, size)
            case FrameKind.DENIED:
                self._deny(value)
            case _:
                raise FrameError(f"a worker may not send a {kind.name} frame")

    def _listener_relay(self) -> ListenerRelay:
        """Return the relay to the listener, created on first use, since most calls need none."""
        if self._relay is None:
            self._relay = ListenerRelay(
                listener=self._listener,
                connection=self._connection,
                share=self.zygote.loop_share,
                ladder=self._ladder,
                resumed=self._resumed,
            )
        return self._relay

    def _resumed(self) -> None:
        if not (self._over.done() or self._is_dead):
            self._climb()

    def _deny(self, value: Mapping[str, object]) -> None:
        denial = Denial(
            operation=str(value.get("operation", ""))[:64],
            path=str(value.get("path", ""))[:4096],
            layer="kernel" if value.get("layer") == "kernel" else "guard",
            wants=wants if (wants := value.get("wants")) in ("read", "write") else "",
        )
        if len(self._denials) < _MAX_DENIALS:
            self._denials[denial] = None

    def _output_readable(self) -> None:
        self._output.read()
        if self._output.has_ended and self._readers is not None:
            self._readers.remove(self.worker.output)

    async def _reap(self) -> None:
        """Wait until the kernel reports that no process of the call is left."""
        if self._relay is not None:
            # Not awaited: a thread that works on an answer cannot be stopped.
            self._relay.answer_no_more()
        await self._end_tasks(self._relay)
        self._status = await self.zygote.reaped(self.worker.pid, REAP_S)
        await self._group_gone()
        self._output.read_all()
        self.worker.close()

    async def _end_tasks(self, relay: ListenerRelay | None) -> None:
        """End the host's tasks for the call; a short call has none."""
        tasks = [task for task in (self._sender, self._watching) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
        if relay is not None:
            await relay.end()
        # A cancelled task keeps its traceback, which refers to this: a cycle for the garbage collector.
        self._sender = self._watching = self._relay = None

    async def _group_gone(self) -> None:
        """Repeat the kill until the process group is empty: a fork may have been in progress."""
        deadline = time.monotonic() + REAP_S
        delay = 0.0002
        while time.monotonic() < deadline:
            if not self.worker.kill_group():
                return
            await asyncio.sleep(delay)
            delay = min(delay * 2, 0.02)
        log.error("process group survived kill", extra={"pid": self.worker.pid})
        self.zygote.close()
