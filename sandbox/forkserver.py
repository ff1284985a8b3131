"""The host's side of the forkserver: start it, order zygotes from it, end it."""

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from sandbox.closer import Closer
from sandbox.connection import Connection
from sandbox.errors import FrameError, ZygoteDied
from sandbox.frames import CONTROL_BYTES, Decoder, Kind, decode, encode
from sandbox.launch import Launched, launch
from sandbox.policy import Policy
from sandbox.zygote import Zygote

__all__ = ["Forkserver"]

log = logging.getLogger(__name__)

_STOP_S = 5.0
_DIED = "the forkserver ended unexpectedly; its last words are on standard error"


@dataclass(slots=True)
class Forkserver:
    """A running forkserver. Make one with `start`; `close` ends it and everything below it."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    _orders: "itertools.count[int]" = field(default_factory=itertools.count)
    _waiting: dict[int, "asyncio.Future[int]"] = field(default_factory=dict)
    _zygotes: dict[int, Zygote] = field(default_factory=dict)
    _ended: dict[int, int] = field(default_factory=dict)
    _decoder: Decoder = field(default_factory=lambda: Decoder(CONTROL_BYTES))
    _up: bool = False
    _closing: bool = False

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

        It is still importing when this returns. Zygotes can be ordered at once; that it could not
        start is told to whoever waits for one, and its own words are on standard error.

        Args:
            program: Name of the module.
            environment: The whole environment of the forkserver and all below it; no secrets.
            lasting: Whether it is for many calls, so that preparing them well is worth time at the start.
            launched: One that was started before. It is used if it is of the same kind.
        """
        if launched is None or not launched.fits(program, environment, lasting=lasting):
            launched = launch(program, environment=environment, lasting=lasting)
        launched.control.setblocking(False)  # noqa: FBT003 - the standard library's signature
        server = cls(process=launched.process, control=launched.control)
        asyncio.get_running_loop().add_reader(server.control.fileno(), server._readable)
        return server

    @property
    def alive(self) -> bool:
        """Whether zygotes can still be had."""
        return not self._closing and self.process.poll() is None

    async def zygote(
        self, policy: Policy, config: Mapping[str, object], *, home_fd: int | None, once: bool = False
    ) -> Zygote:
        """Have a zygote forked for `policy`. It is loading when this returns: see `Zygote.load`.

        Args:
            policy: What it may touch, for its whole life.
            config: Handed to the program's `load`.
            home_fd: Descriptor of the policy's home; stays the caller's.
            once: Ask for a one-shot interpreter instead: see `sandbox.inside.zygote_main.Order`.

        Raises:
            ZygoteDied: The forkserver has ended.
        """
        loop = asyncio.get_running_loop()
        number = next(self._orders)
        started: asyncio.Future[int] = loop.create_future()
        self._waiting[number] = started
        closer = Closer()
        ours, their_control = socket.socketpair()
        announced, their_parked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control = Connection(ours, closer)
        parked = Connection(announced, closer, takes_descriptors=True)
        output, their_output = os.pipe()
        descriptors = [their_control.fileno(), their_parked.fileno(), their_output]
        if home_fd is not None:
            descriptors.append(home_fd)
        # What names a user goes past the forkserver: the zygotes of others inherit all that it ever knew.
        order = {"order": number, "namespaces": policy.namespaces, "limits": asdict(policy.limits)}
        rest = {"policy": policy.to_json(), "config": config, "once": once}
        try:
            await self._send(encode(Kind.ZYGOTE, order), descriptors)
            pid = await started
            with contextlib.suppress(ConnectionError):
                # If it has ended already, the forkserver tells.
                await control.send_all(encode(Kind.ZYGOTE, rest))
        except BaseException:
            # Also when the caller is cancelled: a zygote without its host ends by itself.
            self._waiting.pop(number, None)
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
            policy=policy,
            control=control,
            parked=parked,
            output=output,
            once=once,
            closer=closer,
        )
        if pid in self._ended:
            # It was over before this coroutine got its turn.
            zygote.ended(self._ended.pop(pid))
        else:
            self._zygotes[pid] = zygote
        return zygote

    async def close(self) -> None:
        """End the forkserver, its zygotes and their workers, and wait until they are gone."""
        self._readable()
        self._closing = True
        asyncio.get_running_loop().remove_reader(self.control.fileno())
        if not self._up:
            # It is still importing and would only then notice that nobody wants it any more.
            self.process.kill()
        for zygote in self._zygotes.values():
            zygote.close()
        self.control.close()
        await asyncio.gather(*(zygote.settled() for zygote in self._zygotes.values()))
        try:
            await asyncio.to_thread(self.process.wait, _STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            await asyncio.to_thread(self.process.wait)
        self._fail(ZygoteDied("the forkserver was closed"))

    async def _send(self, frame: bytes, descriptors: list[int]) -> None:
        try:
            sent = socket.send_fds(self.control, [frame], descriptors)
            await asyncio.get_running_loop().sock_sendall(self.control, frame[sent:])
        except ConnectionError as error:
            raise ZygoteDied(_DIED) from error

    def _readable(self) -> None:
        try:
            data = self.control.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._died()
            return
        try:
            for kind, body in self._decoder.feed(data):
                self._frame(kind, decode(body))
        except FrameError:
            log.exception("forkserver broke the frame protocol")
            self._died()

    def _frame(self, kind: Kind, value: object) -> None:
        if not isinstance(value, dict):
            raise FrameError("a control frame that is no object")
        if kind is Kind.STARTED:
            self._up = True
            future = self._waiting.pop(int(value.get("order", -1)), None)
            if future is not None and not future.done():
                self._ended.pop(int(value["pid"]), None)
                future.set_result(int(value["pid"]))
        elif kind is Kind.ENDED:
            pid, status = int(value["pid"]), int(value["status"])
            zygote = self._zygotes.pop(pid, None)
            if zygote is None:
                self._ended[pid] = status
            else:
                zygote.ended(status)

    def _died(self) -> None:
        asyncio.get_running_loop().remove_reader(self.control.fileno())
        if not self._closing:
            log.error("forkserver ended unexpectedly", extra={"pid": self.process.pid})
        self._fail(ZygoteDied(_DIED))

    def _fail(self, error: ZygoteDied) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()
