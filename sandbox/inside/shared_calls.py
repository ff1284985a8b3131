"""Concurrent calls of one user in one worker, each on a connection of its own.

The host passes the connection of each call as a descriptor. So the socket identifies the call of every frame,
denial and reply, and the end of that socket cancels that call alone.

Working folder, environment and other process state are shared: they are restored once no call is running.
"""

import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from sandbox.denials.paths import PathRules
from sandbox.denials.record import Recorder
from sandbox.errors import FrameError
from sandbox.frames import CONTROL_BYTES, FrameKind, receive
from sandbox.inside.process_state import KernelLimits, ProcessState
from sandbox.inside.program import Channel, JoinedCall

__all__ = ["SharedCalls"]


@dataclass(slots=True, kw_only=True, eq=False)
class SharedCalls:
    """The calls that this worker serves.

    Attributes:
        connection: The worker's own connection, on which the host passes those of calls.
        rules: Path rules that explain denials.
        recorder: Recorder of the guard's denials, or None without a guard.
        found: Process state at the start of calls.
        apply: Applies a frame with limits.
    """

    connection: socket.socket
    rules: PathRules
    recorder: Recorder | None
    found: ProcessState
    apply: Callable[[FrameKind, object], None]
    _running: int = field(init=False, default=0)
    _bounds: KernelLimits | None = field(init=False, default=None)
    _goes_on: bool = field(init=False, default=False)

    def joined(self) -> JoinedCall | None:
        """Read one frame of the host; return the call that it passes, or None for another frame.

        Raises:
            EOFError: The host has disconnected.
        """
        frame = receive(self.connection, CONTROL_BYTES)
        if frame is None:
            raise EOFError
        kind, value, descriptors = frame
        if kind is FrameKind.JOIN:
            return self.begin(descriptors)
        self.apply(kind, value)
        return None

    def begin(self, descriptors: list[int]) -> JoinedCall | None:
        """Read a call from its own connection; None if its caller has disconnected."""
        connection = socket.socket(fileno=descriptors[0])
        frame = None
        # The host may close the connection while it sends a long call.
        with contextlib.suppress(FrameError, OSError):
            frame = receive(connection, CONTROL_BYTES)
        if frame is None:
            connection.close()
            return None
        value = frame[1]
        if not isinstance(value, dict):
            raise TypeError("the host sent a call that is not an object")
        number = int(value["number"])
        self._goes_on |= bool(value.get("goes_on"))
        if not self._running:
            if self._bounds is None:
                self._bounds = KernelLimits()
            else:
                self._bounds.begin()
        self._running += 1
        channel = Channel(connection, self.rules, self.recorder)

        def finish(answer: object) -> None:
            self._finish(channel, answer, number)

        return JoinedCall(call=value["call"], channel=channel, finish=finish)

    def _finish(self, channel: Channel, answer: object, number: int) -> None:
        self._running -= 1
        self.found.flush()
        is_ready = True
        if not self._running and self._bounds is not None:
            is_ready = self.found.restore(goes_on=self._goes_on) and self._bounds.restore()
            if self.recorder is not None:
                # A denial between two calls belongs to no call, and a worker that sends then is killed.
                self.recorder.turn_to(_unheard)
        # An answer that cannot be written ends this call only, not concurrent ones.
        with contextlib.suppress(OSError, TypeError, ValueError):
            channel.answer(answer, ready_after=number if is_ready else None)
        # A close alone would leave the connection open in a child of the call.
        with contextlib.suppress(OSError):
            channel.connection.shutdown(socket.SHUT_RDWR)
        channel.connection.close()


def _unheard(_denial: object) -> None:
    """Discard a denial."""
