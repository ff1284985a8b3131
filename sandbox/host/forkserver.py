"""The host's side of the forkserver: start it, order zygotes from it, end it."""

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sandbox.errors import ForkserverDied, FrameError, NoProcess
from sandbox.frames import CONTROL_BYTES, Decoder, FrameKind, decode, encode
from sandbox.host.closer import Closer
from sandbox.host.connection import Connection
from sandbox.host.launch import Launched, launch
from sandbox.host.orphans import end_orphans, started_at
from sandbox.host.retirement import Reuse
from sandbox.host.stopping import look
from sandbox.host.zygote import Zygote
from sandbox.layers import cgroup
from sandbox.loop_share import LoopShare
from sandbox.outcome import describe_status
from sandbox.policy import Policy

__all__ = ["Forkserver"]

log = logging.getLogger(__name__)

_STOP_S = 5.0
_LAST_S = 1.0
# Importing the framework takes a while on a busy machine. Afterwards an order is only a fork.
_START_S = 120.0
_ORDER_S = 10.0
# On an overloaded machine, a healthy forkserver may wait longer than its limit for a processor.
_MOST_LIMITS = 6
_BUSY_SHARE = 0.25
_DIED = (
    "the process that starts all others of the tools (the forkserver) ended unexpectedly, with {status}; "
    "its last words are on standard error"
)
_HANGS = "the process that starts all others of the tools (the forkserver) took no order for {seconds:g} s"


@dataclass(slots=True)
class Forkserver:
    """A running forkserver. Make one with `start`; `close` ends it and everything below it.

    Attributes:
        process: Its process.
        control: Our end of its control socket.
        order_s: Seconds to carry out an order before it is considered hung.
        lost: Called once, if it ends without having been closed.
        retired: How many workers of its zygotes were retired, by reason.
    """

    process: subprocess.Popen[bytes]
    control: socket.socket
    order_s: float = _ORDER_S
    lost: Callable[[], None] = lambda: None
    retired: Counter[str] = field(default_factory=Counter)
    _orders: "itertools.count[int]" = field(default_factory=itertools.count)
    _waiting: dict[int, "asyncio.Future[int]"] = field(default_factory=dict)
    _zygotes: dict[int, Zygote] = field(default_factory=dict)
    _started: dict[int, int | None] = field(default_factory=dict)
    _ended: dict[int, int] = field(default_factory=dict)
    _decoder: Decoder = field(default_factory=lambda: Decoder(CONTROL_BYTES))
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    _pidfd: int = field(init=False)
    _began: int | None = field(init=False)
    _up: "asyncio.Future[None]" = field(init=False)
    _gone: "asyncio.Future[None]" = field(init=False)
    _loss: ForkserverDied | None = None
    _closing: bool = False
    _carried_out: int = 0

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._up = loop.create_future()
        self._gone = loop.create_future()
        self._began = started_at(self.process.pid)
        self._pidfd = os.pidfd_open(self.process.pid)
        loop.add_reader(self.control.fileno(), self._readable)
        # Another process could hold its end of the socket, so an end of file does not prove its exit.
        loop.add_reader(self._pidfd, self._died)

    @classmethod
    async def start(
        cls,
        program: str,
        *,
        environment: Mapping[str, str],
        lasting: bool = True,
        launched: Launched | None = None,
    ) -> "Forkserver":
        """Start a forkserver that offers `program`, a module with a `PROGRAM`.

        It is still importing when this returns. Zygotes can be ordered at once; a failed start is
        raised to the waiters, and its own output is on standard error.

        Args:
            program: Name of the module.
            environment: The whole environment of the forkserver and all below it; no secrets.
            lasting: Whether it is for many calls, so that preparing them well is worth time at the start.
            launched: A process started earlier, used if its program and environment match.

        Raises:
            NoProcess: The kernel refused to start a process.
        """
        if launched is None or not launched.fits(program, environment, lasting=lasting):
            try:
                launched = launch(program, environment=environment, lasting=lasting)
            except OSError as error:
                raise NoProcess(f"no process could be started for the tools: {error.strerror}") from error
        launched.control.setblocking(False)  # noqa: FBT003 - the standard library's signature
        return cls(process=launched.process, control=launched.control)

    @property
    def alive(self) -> bool:
        """True unless its end has been noticed."""
        return not self._closing and self._loss is None

    @property
    def loss(self) -> ForkserverDied | None:
        """Reason of its end, unless it was closed."""
        return self._loss

    async def up(self) -> None:
        """Wait until it has imported its program.

        Raises:
            ForkserverDied: It ended before that, or took too long and was ended.
        """
        try:
            await asyncio.wait_for(asyncio.shield(self._up), _START_S)
        except TimeoutError:
            raise self._hangs(_START_S) from None

    async def answers(self) -> None:
        """Wait until it has confirmed that it handles orders.

        Raises:
            ForkserverDied: It has ended, or does not answer and was ended.
        """
        await self._ordered(FrameKind.PING, {}, [])

    async def zygote(
        self,
        policy: Policy,
        config: Mapping[str, object],
        *,
        home_fd: int | None,
        once: bool = False,
        reuse: Reuse | None = None,
    ) -> Zygote:
        """Fork a zygote for `policy`. It is loading when this returns: see `Zygote.load`.

        Args:
            policy: What it may touch, for its whole life.
            config: Handed to the program's `load`.
            home_fd: Descriptor of the policy's home; stays the caller's.
            once: Ask for a one-shot interpreter instead: see `sandbox.inside.zygote_main.Order`.
            reuse: How long its workers stay with their user; by default each serves one call.

        Raises:
            ForkserverDied: The forkserver has ended, or does not take the order and was ended.
            NoProcess: The kernel refused to start a process.
        """
        closer, share = Closer(), LoopShare()
        ours, their_control = socket.socketpair()
        announced, their_parked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control = Connection(ours, closer, share)
        parked = Connection(announced, closer, share, takes_descriptors=True)
        output, their_output = os.pipe()
        descriptors = [their_control.fileno(), their_parked.fileno(), their_output]
        if home_fd is not None:
            descriptors.append(home_fd)
        # Anything that names a user bypasses the forkserver: zygotes of other users inherit its memory.
        order = {"namespaces": policy.namespaces, "limits": asdict(policy.limits)}
        rest = {"policy": policy.to_json(), "config": config, "once": once}
        try:
            pid = await self._ordered(FrameKind.ZYGOTE, order, descriptors)
            with contextlib.suppress(ConnectionError):
                # If it has ended already, the forkserver reports that.
                await control.send_all(encode(FrameKind.ZYGOTE, rest))
        except BaseException:
            # Also when the caller is cancelled: a zygote without its host ends by itself.
            control.close()
            parked.close()
            os.close(output)
            raise
        finally:
            their_control.close()
            their_parked.close()
            os.close(their_output)
        zygote = Zygote(
            pid=pid,
            forkserver=self.process.pid,
            policy=policy,
            control=control,
            parked=parked,
            output=output,
            once=once,
            closer=closer,
            loop_share=share,
            reuse=reuse or Reuse(),
            tally=self.retired,
        )
        if self._loss is not None:
            zygote.lost(self._loss)
        elif pid in self._ended:
            # It ended before this coroutine resumed.
            zygote.ended(self._ended.pop(pid))
        else:
            self._zygotes[pid] = zygote
        return zygote

    async def close(self) -> None:
        """End the forkserver, its zygotes and their workers, and wait until they are gone."""
        if self._closing:
            return
        self._readable()
        self._closing = True
        lost = self._loss is not None
        if not self._up.done():
            # It is still importing and would notice the closed connection only afterwards.
            self.process.kill()
        for zygote in self._zygotes.values():
            zygote.close()
        self._let_go(ForkserverDied("the forkserver was closed"))
        await asyncio.gather(*(zygote.settled() for zygote in self._zygotes.values()))
        try:
            await asyncio.to_thread(self.process.wait, _STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            await asyncio.to_thread(self.process.wait)
            lost = True
        if lost:
            await asyncio.to_thread(self._end_what_is_left)

    def _end_what_is_left(self) -> None:
        """Kill the processes that a killed forkserver left behind."""
        self.process.wait()
        if not end_orphans({**self._started, self.process.pid: self._began}):
            log.error("processes outlived their forkserver", extra={"pid": self.process.pid})
        cgroup.sweep()

    async def _ordered(self, kind: FrameKind, order: Mapping[str, object], descriptors: list[int]) -> int:
        """Send an order; return its reply.

        Raises:
            ForkserverDied: It has ended, or does not take the order and was ended.
            NoProcess: The kernel refused to start a process.
        """
        await self.up()
        number = next(self._orders)
        done = self._waiting[number] = asyncio.get_running_loop().create_future()
        frame = encode(kind, {"order": number, **order})
        carrying = asyncio.create_task(self._carried(frame, descriptors, done))
        try:
            for _ in range(_MOST_LIMITS):
                was = self._seen()
                await asyncio.wait({carrying}, timeout=self.order_s)
                # This process itself may have been starved, with the answer received but unread.
                self._readable()
                if carrying.done() or done.done():
                    return await carrying
                if not self._is_held_up(was):
                    break
            raise self._hangs(self.order_s)
        finally:
            carrying.cancel()
            self._waiting.pop(number, None)

    async def _carried(self, frame: bytes, descriptors: list[int], done: "asyncio.Future[int]") -> int:
        await self._send(frame, descriptors)
        return await done

    def _seen(self) -> tuple[float, int, float]:
        return time.monotonic(), self._carried_out, _wanted_processor_s(self.process.pid)

    def _is_held_up(self, was: tuple[float, int, float]) -> bool:
        """Return whether it is healthy, and only waits for a processor, the disk or this process.

        All tools of all users end with it, so it is not killed for the slowness of a busy machine.
        """
        now = self._seen()
        waited_s, carried_out, wanted_s = (after - before for after, before in zip(now, was, strict=True))
        we_were_late = waited_s > (1 + _BUSY_SHARE) * self.order_s
        works = carried_out > 0 or wanted_s >= _BUSY_SHARE * self.order_s
        return we_were_late or works or _waits_for_the_disk(self.process.pid)

    async def _send(self, frame: bytes, descriptors: list[int]) -> None:
        loop = asyncio.get_running_loop()
        # One send at a time: the bytes of overlapping sends would mix.
        async with self._sending:
            while self._loss is None and not self._closing:
                try:
                    sent = socket.send_fds(self.control, [frame], descriptors)
                    await loop.sock_sendall(self.control, frame[sent:])
                except BlockingIOError:
                    await _writable(loop, self.control.fileno())
                except OSError as error:
                    log.debug("forkserver order failed", extra={"fault": str(error)})
                    self._deaf()
                    await self._gone
                else:
                    return
        raise self._loss or ForkserverDied("the forkserver was closed")

    def _readable(self) -> None:
        if self._closing or self._loss is not None:
            return
        try:
            data = self.control.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._deaf()
            return
        try:
            for kind, body in self._decoder.feed(data):
                self._frame(kind, decode(body))
        except (FrameError, KeyError, TypeError, ValueError):
            log.exception("forkserver broke the frame protocol")
            self._deaf()

    def _frame(self, kind: FrameKind, value: object) -> None:
        if not isinstance(value, dict):
            raise FrameError("a control frame that is not an object")
        if kind is FrameKind.ENDED:
            self._zygote_ended(int(value["pid"]), int(value["status"]))
            return
        if kind is FrameKind.STARTED and not self._up.done():
            self._up.set_result(None)
        future = self._waiting.pop(int(value.get("order", -1)), None)
        if kind is FrameKind.STARTED and "order" in value:
            # Also a zygote without a waiter: it is ended with the others.
            pid = int(value["pid"])
            self._ended.pop(pid, None)
            self._started[pid] = started_at(pid)
        self._carried_out += 1
        if future is None or future.done():
            return
        if kind is FrameKind.FAILED:
            future.set_exception(
                NoProcess(f"no process could be started for a user's tools: {value['message']}")
            )
        else:
            future.set_result(int(value.get("pid", 0)))

    def _zygote_ended(self, pid: int, status: int) -> None:
        self._started.pop(pid, None)
        zygote = self._zygotes.pop(pid, None)
        if zygote is None:
            self._ended[pid] = status
        else:
            zygote.ended(status)

    def _hangs(self, seconds: float) -> ForkserverDied:
        """Kill it, since it is stopped or blocked."""
        if self._loss is None and not self._closing:
            self._end(ForkserverDied(_HANGS.format(seconds=seconds)))
        return self._loss or ForkserverDied("the forkserver was closed")

    def _deaf(self) -> None:
        """Kill it, since its connection is broken; its pidfd reports its exit."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.control.fileno())
        # Delayed: a process that is about to exit by itself has a wait status that explains why.
        loop.call_later(_LAST_S, self.process.kill)

    def _died(self) -> None:
        self._readable()
        if self._loss is None and not self._closing:
            code = self.process.poll() or 0
            status = describe_status(-code if code < 0 else code << 8)
            self._end(ForkserverDied(_DIED.format(status=status)))

    def _end(self, why: ForkserverDied) -> None:
        """Kill it, fail all waiting orders, and notify its owner."""
        self.process.kill()
        self._loss = why
        log.error("forkserver ended unexpectedly", extra={"pid": self.process.pid, "reason": str(why)})
        self._let_go(why)
        for zygote in self._zygotes.values():
            zygote.lost(why)
        self.lost()

    def _let_go(self, error: ForkserverDied) -> None:
        """Close the connections to it, and fail all waiters."""
        if self._gone.done():
            return
        self._gone.set_result(None)
        loop = asyncio.get_running_loop()
        for descriptor in (self.control.fileno(), self._pidfd):
            loop.remove_reader(descriptor)
        self.control.close()
        os.close(self._pidfd)
        _fail(self._up, error)
        for future in self._waiting.values():
            _fail(future, error)
        self._waiting.clear()


def _fail(future: "asyncio.Future[None] | asyncio.Future[int]", error: ForkserverDied) -> None:
    if not future.done():
        future.set_exception(error)
        # Read once, so that asyncio does not report it as never retrieved.
        future.exception()


async def _writable(loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
    """Wait until something can be written to a socket."""
    ready = asyncio.Event()
    loop.add_writer(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(descriptor)


def _wanted_processor_s(pid: int) -> float:
    """Return the time that a process has run or waited for a processor; 0 if unknown.

    Source: Documentation/scheduler/sched-stats.rst, "/proc/<pid>/schedstat".
    """
    try:
        had, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    except (OSError, ValueError):
        return 0.0
    return (int(had) + int(waited)) / 1e9


def _waits_for_the_disk(pid: int) -> bool:
    """Return whether a process sleeps in the kernel, out of reach of signals, as for disk or memory.

    Source: proc_pid_stat(5), state D.
    """
    facts = look(pid)
    return facts is not None and facts.state == b"D"
