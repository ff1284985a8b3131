"""Interface of a program: a zygote loads it once, and its workers run it, call by call.

The sandbox does not interpret what a program does; it carries JSON values to and from it.
"""

import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Protocol

from sandbox.denials.judge import GuardDenied, shown
from sandbox.denials.paths import PathRules
from sandbox.denials.recognise import behind, explain
from sandbox.denials.record import Recorder
from sandbox.frames import CONTROL_BYTES, FrameKind, receive, send
from sandbox.outcome import Denial

__all__ = ["CallOver", "Channel", "JoinedCall", "Program"]


class CallOver(ConnectionError):
    """Error of a send for a call that has already been answered."""


class Channel:
    """The worker's end of its connection to the host, for one call. Safe to use from any thread."""

    def __init__(
        self,
        connection: socket.socket,
        rules: PathRules,
        recorder: Recorder | None = None,
        lock: "threading.Lock | None" = None,
    ) -> None:
        self.connection = connection
        self._rules = rules
        self._recorder = recorder or Recorder()
        self._lock = lock or threading.Lock()
        self._is_over = False

    def renewed(self) -> "Channel":
        """Return the channel of the next call."""
        return Channel(self.connection, self._rules, self._recorder, self._lock)

    @property
    def is_over(self) -> bool:
        """True if the call has been answered."""
        return self._is_over

    def retire(self) -> None:
        """Disable sending: calls have channels of their own from now on."""
        self._is_over = True

    def enter(self) -> None:
        """Report denials of this context here, while other calls run concurrently."""
        self._recorder.enter(self.denied)

    def send(self, kind: FrameKind, value: object) -> None:
        """Send one frame; block while the host does not read.

        Raises:
            CallOver: The call has been answered; a thread or task that it left behind is too late.
            ValueError: The value is not JSON.
            TypeError: The value is not JSON.
        """
        with self._lock:
            self._check_open()
            send(self.connection, kind, value)

    def answer(self, value: object, *, ready_after: int | None = None) -> None:
        """Send the answer; nothing of this call is sent after it.

        Args:
            value: The answer.
            ready_after: Number of the call, if this worker now waits for another one.

        Raises:
            CallOver: The answer has already been sent.
            ValueError: The value is not JSON.
            TypeError: The value is not JSON.
        """
        with self._lock:
            self._check_open()
            if ready_after is None:
                send(self.connection, FrameKind.ANSWER, value)
            else:
                send(self.connection, FrameKind.ANSWER_AND_READY, {"number": ready_after, "answer": value})
            self._is_over = True

    def _check_open(self) -> None:
        if self._is_over:
            raise CallOver("the call has been answered")

    def denied(self, denial: Denial) -> None:
        """Report a denial to the host."""
        self.send(FrameKind.DENIED, asdict(denial))

    def explain(self, error: BaseException) -> Denial | None:
        """Return the denial behind an error, if there is one; report one that is unknown to the host."""
        for found in behind(error):
            if isinstance(found, GuardDenied):
                path = shown(str(found.filename))
                return Denial(operation="file operation", path=path, wants=found.wants)
        denial = explain(error, self._rules, databases=self._recorder.databases())
        if denial is not None and not (denial.path and self._recorder.has(denial.path)):
            self.denied(denial)
        return denial

    def receive(self) -> tuple[FrameKind, object, list[int]] | None:
        """Wait for the next frame from the host, with its descriptors; None at the end of the connection."""
        return receive(self.connection, CONTROL_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JoinedCall:
    """One call of several that a worker serves at once.

    Attributes:
        call: The call.
        channel: Its own channel. End of file on it means that the caller does not wait any more.
        finish: Sends the answer, and restores the process state if it was the last running call.
    """

    call: object
    channel: Channel
    finish: Callable[[object], None]


class Program(Protocol):
    """Loaded by a zygote, run by its workers. A module offers one as `PROGRAM`."""

    def begin(self) -> None:
        """Run shared preparation once, in the forkserver.

        It must not leave threads behind.
        """
        ...

    def load(self, config: Mapping[str, object]) -> object:
        """Load the program of `config` in the confined zygote; return a JSON value for the host.

        If it is an object whose `finishes` is true, `finish` runs in workers that are retired in order.

        Raises:
            LoadError: The author's file is at fault.
        """
        ...

    def warm_up(self) -> None:
        """Run the first-use work of workers once, in the zygote.

        It is called after the load was reported to the host, and before the first fork; not in a one-shot
        zygote. It must not leave threads behind, and does not raise.
        """
        ...

    def prepare(self, *, warm: bool) -> None:
        """Prepare a worker that has no call yet.

        Args:
            warm: Whether there is time for work that makes the call faster and the worker more expensive,
                such as using libraries once more.

        Raises:
            LoadError: The author's file is at fault.
        """
        ...

    def serve(self, call: object, channel: Channel) -> object:
        """Run one call to its end and return the answer, a JSON value. Called once for each call."""
        ...

    def serve_many(
        self, first: JoinedCall | None, connection: socket.socket, joined: Callable[[], JoinedCall | None]
    ) -> None:
        """Run calls concurrently, each to its end or its cancellation, until the host disconnects.

        Args:
            first: The first of them, if its caller still waits.
            connection: Readable when `joined` has something to return.
            joined: Returns the next call, or None if it read another frame.

        Raises:
            EOFError: Raised by `joined`: the host has disconnected.
        """
        ...

    def finish(self) -> None:
        """Undo `prepare`: this worker serves no further calls, and is killed soon."""
        ...

    def wait(self, connection: socket.socket) -> None:
        """Let jobs run until the connection is readable.

        Called only in a worker that is not stopped between calls.
        """
        ...
