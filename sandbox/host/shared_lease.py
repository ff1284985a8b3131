"""The right to one call in a worker that serves other calls of its user at once.

Each call has its own lease and connection, so frames, ladder, denials and notices work as in `Lease`. The
process itself, its output and its limits are shared: the end of the process ends all of its calls, each with
the same reason.

A call that is cancelled or silent for too long is cancelled in the process first. If it does not end, and
others run beside it, the process takes no further call and is killed when the last of them has ended. A
process that does not even receive the cancellation is killed at once: nothing in it makes progress.
"""

import asyncio
import contextlib
import socket
import time
from dataclasses import dataclass, field

from sandbox.errors import FrameError
from sandbox.frames import ANSWERS, FrameKind, decode, encode
from sandbox.host.connection import Connection
from sandbox.host.job import Job
from sandbox.host.lease import REAP_S, Lease
from sandbox.host.listener_relay import ListenerRelay
from sandbox.host.output import read_some
from sandbox.host.readers import Readers
from sandbox.host.stopping import resume_process
from sandbox.host.worker import Worker
from sandbox.outcome import Ending

__all__ = ["SharedLease", "Sharing"]

# A cancelled call may clean up; the caller waits as long for the timeout error.
_CANCEL_S = 1.0
_LOOK_S = 0.02
# After the cancellation of a call: most frames read, and the longest answer decoded.
_LATE_FRAMES = 2_000
_LATE_BYTES = 1 << 16
# Encoded once: each call sends it.
_JOIN = encode(FrameKind.JOIN, {})
_SILENT = (None, Ending.IDLE_TIMEOUT, Ending.TOTAL_TIMEOUT)


@dataclass(slots=True, kw_only=True, eq=False)
class Sharing:
    """The calls of one worker.

    Attributes:
        worker: The worker.
        is_drained: Whether it takes no further calls.
        is_killed: Whether it has been killed.
        is_dead: Whether it has ended, killed or not.
        why: Why it was killed, for the calls that ended with it.
        served: Number of calls that it served at its end.
        status: Its wait status in words, once it has been reaped.
        reaping: Waits until it has been reaped.
        stopping: Waits until it has stopped, for all calls whose outputs are to be read.
        leased: The calls for which the worker is reserved, from their lease to its release.
        running: The calls that run.
    """

    worker: Worker
    is_drained: bool = False
    is_killed: bool = False
    is_dead: bool = False
    why: str | None = None
    served: int = 0
    status: str | None = None
    reaping: "asyncio.Task[None] | None" = None
    stopping: "asyncio.Task[None] | None" = None
    # Leased calls, those of them that run, and those whose outputs are being read.
    leased: "set[SharedLease]" = field(init=False, default_factory=set)
    running: "dict[SharedLease, None]" = field(init=False, default_factory=dict)
    _resting: "set[SharedLease]" = field(init=False, default_factory=set)
    _readers: Readers | None = field(init=False, default=None)
    _is_reaped: bool = field(init=False, default=False)

    @property
    def is_resting(self) -> bool:
        """True if the worker is stopped while outputs of a call are read."""
        return bool(self._resting)

    def is_alone(self, call: "SharedLease") -> bool:
        """Return whether no other call uses the worker."""
        return not self.leased - {call}

    def begin(self, call: "SharedLease") -> None:
        """Register a running call; it receives the output, and the end of the worker."""
        if self._readers is None:
            self._readers = Readers(self.worker.connection.share)
            self._readers.add(self.worker.output, self.read)
            self._readers.add(self.worker.pidfd, self._died)
        self.running[call] = None
        if self.worker.stop_sent:
            # It was stopped for outputs of a call that was released before this one began.
            self._go_on()

    def end(self, call: "SharedLease") -> None:
        """Record that a call has ended."""
        self.running.pop(call, None)
        if not self.running and self._readers is not None:
            self._readers.close()
            self._readers = None

    def release(self, call: "SharedLease") -> bool:
        """Give up the reservation of a call; return whether it was the last one."""
        self.end(call)
        # The worker continues for the running calls, once no outputs are being read.
        if call in self._resting:
            self._resting.discard(call)
            if not self._resting:
                if self.stopping is not None:
                    self.stopping.cancel()
                    self.stopping = None
                self._go_on()
        had = call in self.leased
        self.leased.discard(call)
        if self._is_reaped:
            self._close()
        return had and not self.leased

    def rest(self, call: "SharedLease") -> None:
        """Record that outputs of a call are about to be read."""
        self._resting.add(call)

    def kill(self, why: str | None) -> bool:
        """End the worker and every call in it; return False if it was ended before.

        Args:
            why: The reason given to the other calls, not to the one that caused it.
        """
        if self.is_killed:
            return False
        self.is_killed = self.is_dead = True
        self.why = why
        # Includes the call that ends it, which is no longer in `running`.
        self.served = self.served or len(self.running) + 1
        self.worker.kill()
        for call in tuple(self.running):
            call.died()
        return True

    def reaped(self, status: str | None) -> None:
        """Record that the worker and its whole process group have ended."""
        self.status, self._is_reaped = status, True
        self._close()

    def read(self) -> None:
        """Pass output to every running call, since a pipe does not identify its writer."""
        part = read_some(self.worker.output, self.worker.connection.share)
        if part == b"" and self._readers is not None:
            self._readers.remove(self.worker.output)
        for call in self.running if part else ():
            call.printed(part or b"")

    def _go_on(self) -> None:
        """Continue a stopped worker, if a call runs and no outputs are being read."""
        if self._resting or self.is_dead or not (self.running and self.worker.stop_sent):
            return
        with contextlib.suppress(OSError):
            resume_process(self.worker.pidfd)
            self.worker.stop_sent = False
        for one in tuple(self.running):
            one.resumed()

    def _close(self) -> None:
        """Close the worker's descriptors once it has ended and no call uses it: their numbers are reused."""
        if not self.leased:
            self._is_reaped = False
            if self._readers is not None:
                self._readers.close()
                self._readers = None
            self.worker.close()

    def _died(self) -> None:
        self.is_dead = True
        if self._readers is not None:
            self._readers.remove(self.worker.pidfd)
        self.served = self.served or len(self.running)
        for call in tuple(self.running):
            call.died()


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class SharedLease(Lease):
    """The lease of one of several calls in a worker.

    Attributes:
        sharing: The calls of the worker.
    """

    sharing: Sharing

    def printed(self, part: bytes) -> None:
        """Store the worker's output during the call."""
        self._output.keep(part)

    def died(self) -> None:
        """Wait briefly for frames sent before the worker's death."""
        if not self._is_dead:
            self._died()

    def resumed(self) -> None:
        """Resume counting silence: the worker was stopped for another call."""
        self._ladder.progress(time.monotonic())

    def _take_turn(self) -> None:
        if self.sharing.is_dead:
            return
        if self.sharing.running:
            # Both calls share the limits set with the earlier one, except for processor time.
            self.zygote.parking.top_up(self.worker)
        else:
            self.zygote.turn(self.worker)

    def _cause(self) -> str | None:
        if self.zygote.loss or self.sharing.why:
            return str(self.zygote.loss or self.sharing.why)
        if self.sharing.served < 2:
            return None
        served, status = self.sharing.served, self._status or "for an unknown reason"
        return f"its process, which served {served} calls at once, ended ({status}); any may have caused that"

    def _attend(self, readers: Readers) -> None:
        self.sharing.begin(self)

    def _hand_over(self, frame: bytes) -> memoryview:
        if self.sharing.is_dead:
            raise ConnectionError("the worker has ended")
        narrowing = self._narrowing()
        if narrowing and self.worker.connection.send_now(narrowing):
            raise BlockingIOError("the worker has left its messages unread")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection = Connection(ours, self.zygote.closer, self.zygote.loop_share)
        with theirs:
            self.worker.is_shared = True
            self.worker.connection.pass_on(_JOIN, theirs.fileno())
        return self._connection.send_now(frame)

    def _keep_or_kill(self, ending: Ending | None, *, is_telling: bool) -> bool:
        """Remove the call from the worker; return whether the last one has left processes beside it."""
        self.sharing.read()
        self.sharing.end(self)
        left_others = False
        if self._is_orderly(ending):
            left_others = self._leaves_processes()
            if left_others:
                self._kill("left a process", None)
        elif ending in _SILENT and not self._is_dead:
            self._reaping = self.zygote.reap(self._cancel())
            return False
        elif ending is Ending.ANSWERED and self._answer is not None and not self.sharing.is_alone(self):
            # Other calls need not end for it.
            self.sharing.is_drained = True
        else:
            self._kill("disorder", self._why_others_end(ending))
        if self._sender or is_telling or self._watching:
            self.zygote.reap(self._let_go(self._relay))
        elif self._connection is not self.worker.connection:
            self._connection.close()
        # Lease and relay refer to each other: a cycle for the garbage collector.
        self._relay = None
        return left_others

    def _why_others_end(self, ending: Ending | None) -> str | None:
        if ending is Ending.OVER_LIMIT and self._reached is not None:
            served, limit = len(self.sharing.running) + 1, self._reached.limit
            return f"its process, which served {served} calls at once, reached the limit {limit}"
        # If the process exited by itself, the call at fault is unknown.
        return None if self._fault is None else "another call in its process broke the protocol"

    async def _let_go(self, relay: ListenerRelay | None) -> None:
        if relay is not None:
            # Not awaited: a thread that works on an answer cannot be stopped.
            relay.answer_no_more()
        await self._end_tasks(relay)
        if self._connection is not self.worker.connection:
            self._connection.close()

    def _leaves_processes(self) -> bool:
        return (
            not self.worker.goes_on
            and not self.sharing.running
            and not self.sharing.is_killed
            and self.zygote.has_strays(self.worker.pid)
        )

    def _kill(self, reason: str, why: str | None) -> None:
        if self.sharing.kill(why):
            self.zygote.note_retired(self.worker, reason)
            self.sharing.reaping = self.zygote.reap(self._reap_worker())

    async def _reap_worker(self) -> None:
        status = await self.zygote.reaped(self.worker.pid, REAP_S)
        await self._group_gone()
        self.sharing.reaped(status)

    async def _cancel(self) -> None:
        """Cancel the call in the worker, and wait until it has ended there."""
        # Set when the call has ended in the worker, or sends frames without end.
        gone: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        received = ready = answered = False
        frames = 0

        def hear() -> None:
            nonlocal received, ready, answered, frames
            data = None
            with contextlib.suppress(OSError, FrameError):
                data = self._connection.receive_now(1 << 16)
                if data is None:
                    return
                for kind, body in self._decoder.feed(data):
                    frames += 1
                    if answered or frames > _LATE_FRAMES:
                        ready, data = False, b""
                        break
                    received |= kind is FrameKind.CANCELLING
                    answered = kind in ANSWERS
                    # Decoding a long answer would delay others; its worker serves no further call.
                    if kind is FrameKind.ANSWER_AND_READY and len(body) <= _LATE_BYTES:
                        value = decode(body)
                        ready = isinstance(value, dict) and value.get("number") == self._number
                if data:
                    return
            if not gone.done():
                gone.set_result(frames <= _LATE_FRAMES)

        readers = Readers(self.zygote.loop_share)
        try:
            readers.add(self._connection.fileno(), hear)
            with contextlib.suppress(OSError):
                self._connection.end_sending()
            patience_s, now = _CANCEL_S, time.monotonic()
            while not gone.done() and patience_s > 0 and not self.sharing.is_dead:
                await asyncio.wait({gone}, timeout=_LOOK_S)
                before, now = now, time.monotonic()
                # A worker stopped for another call's outputs cannot react, and a busy host reads late.
                patience_s -= 0 if self.sharing.is_resting else min(now - before, 5 * _LOOK_S)
        finally:
            readers.close()
            is_gone = gone.done() and not gone.cancelled() and gone.result()
            self._end_cancelled(is_gone=is_gone, received=received, ready=ready)
            await self._let_go(self._relay)

    def _end_cancelled(self, *, is_gone: bool, received: bool, ready: bool) -> None:
        if is_gone and ready and not self._leaves_processes():
            return
        if self.sharing.is_alone(self):
            self._kill("cancelled", None)
        elif is_gone or received:
            # A sync tool runs until it returns; concurrent calls may still finish.
            self.sharing.is_drained = True
        else:
            self._kill("cancelled", "its process did not react to the cancellation of another call")

    async def _settled(self) -> None:
        if self._reaping is not None:
            await asyncio.shield(self._reaping)
        if self.sharing.reaping is not None:
            await asyncio.shield(self.sharing.reaping)
        self._status = self.sharing.status

    async def at_rest(self) -> None:
        """Wait until the worker is stopped, with all of its calls, or not alive."""
        await self._settled()
        if self.sharing.is_killed:
            return
        self.sharing.rest(self)
        if self.sharing.stopping is None:
            self.sharing.stopping = self.zygote.reap(self._stop_for_all())
        # Shielded: another call may wait for the stop before its outputs are read.
        await asyncio.shield(self.sharing.stopping)
        await self._settled()

    async def _stop_for_all(self) -> None:
        is_alone = not self.sharing.running
        if not await self._stands(has_others=self.worker.goes_on or not is_alone):
            self._kill("not stopped", "its process could not be stopped to read the outputs of another call")
        elif is_alone and self._leaves_processes():
            self._kill("left a process", None)

    async def retire(self, reason: str) -> None:
        """End the worker as soon as no other call uses it, and wait until this call is inactive."""
        if self._is_unused:
            self._is_unused = False
        elif self.sharing.is_alone(self):
            self._kill(reason, None)
        else:
            self.sharing.is_drained = True
        await self.at_rest()

    async def abandon(self) -> None:
        """Give the worker back once the call has been cancelled in it."""
        try:
            await self._settled()
        finally:
            self.release()

    def release(self) -> Job | None:
        """Give up the call; the worker is parked, or ended, once no call uses it."""
        is_pending = self._reaping is not None and not self._reaping.done()
        if not self.sharing.release(self) or self.sharing.is_killed:
            return None
        if is_pending or self.sharing.is_drained:
            self._kill("drained", None)
            return None
        return self.zygote.park(self.worker, home_fd=self.home_fd)
