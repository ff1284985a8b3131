"""The host's side of controls: an act in a process without confinement, ended by killing just that one."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from sandbox.errors import FrameError, SandboxError
from sandbox.frames import CONTROL_BYTES, FrameKind, receive, send
from sandbox.fsuid import as_owner_of
from sandbox.policy import MIB
from sandbox.selftest.attempt import ActEvidence, Attempt, Blind
from sandbox.selftest.world import Ground, World, world

__all__ = ["Controls", "claimed", "controls", "looked"]

_TAKES_ANYTHING = 1024 * MIB
_GONE_S = 5.0


@dataclass(slots=True, kw_only=True)
class Controls:
    """Runs acts unconfined. Make one with `controls`; safe to use from several threads."""

    ground: Ground
    control: socket.socket
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, attempt: Attempt) -> tuple[bool, ActEvidence]:
        """Run an act in a world of its own; return whether it got out, and what was seen of it.

        Raises:
            SandboxError: The process that runs the controls has ended.
        """
        output = self.ground.homes.parent / f"output-{attempt.id}"
        with (
            world(self.ground) as theirs,
            output.open("wb") as file,
            self._started(attempt, theirs, file.fileno()) as (child, connection),
        ):
            # This one acts as our own user, whatever user the home belongs to.
            made = replace(theirs, uid=os.geteuid())
            during, answer = child.converse(attempt, made, connection)
            if answer is not None:
                # What never answers is not ended: that takes a host with limits.
                child.kill()
            printed = output.stat().st_size
            output.unlink()
            seen = replace(claimed(answer, "no answer"), during=during, output_bytes=printed, naive=True)
            return attempt.escaped(made, seen), seen

    @contextmanager
    def _started(
        self, attempt: Attempt, made: World, output: int
    ) -> "Iterator[tuple[_Child, socket.socket]]":
        ours, theirs = socket.socketpair()
        call = {"id": attempt.id, "place": made.place.to_json(), "folder": str(made.path)}
        with ours:
            with self._lock, theirs:
                child = self._forked(call, theirs.fileno(), output)
            try:
                yield child, ours
            finally:
                child.kill_all()

    def _forked(self, call: Mapping[str, object], connection: int, output: int) -> "_Child":
        try:
            send(self.control, FrameKind.CALL, call, [connection, output])
            frame = receive(self.control, CONTROL_BYTES)
        except OSError:
            frame = None
        if frame is None or not isinstance(frame[1], dict):
            raise SandboxError(
                "the process that runs the controls has ended; its last words are on standard error"
            )
        return _Child(int(frame[1]["pid"]))


class _Child:
    """One control, held by descriptor: its number could become another's."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = -1
        with contextlib.suppress(ProcessLookupError):
            self._pidfd = os.pidfd_open(pid)

    def converse(
        self, attempt: Attempt, made: World, connection: socket.socket
    ) -> tuple[object, Mapping[str, object] | None]:
        """Listen until the answer, the end or the limit; return what was found meanwhile, and the answer."""
        during = None
        deadline = time.monotonic() + attempt.limit_s
        with contextlib.suppress(TimeoutError, ConnectionError, FrameError):
            connection.settimeout(attempt.limit_s)
            while (frame := receive(connection, _TAKES_ANYTHING)) is not None:
                kind, value, _ = frame
                if kind is FrameKind.ANSWER and isinstance(value, Mapping):
                    return during, value
                if kind is FrameKind.REQUEST:
                    during = looked(attempt, made, self.pid)
                    send(connection, FrameKind.REPLY, {"id": 1})
                connection.settimeout(max(0.001, deadline - time.monotonic()))
        return during, None

    def kill(self) -> None:
        """Kill the process, and wait until it is gone."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            select.select([self._pidfd], [], [], _GONE_S)

    def kill_all(self) -> None:
        """Kill the process and what is left of its group."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.kill()
            os.close(self._pidfd)


@contextmanager
def controls(program: str, ground: Ground, environment: Mapping[str, str]) -> Iterator[Controls]:
    """Start the process that controls are forked from, and end it.

    Args:
        program: Module of the program that has the acts.
        ground: Where the worlds lie.
        environment: The whole environment of the process.
    """
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-P", "-m", "sandbox.selftest.unconfined", str(theirs.fileno()), program]
    process = subprocess.Popen(
        command,
        env=dict(environment),
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    theirs.close()
    try:
        with ours:
            yield Controls(ground=ground, control=ours)
    finally:
        process.kill()
        process.wait()


def looked(attempt: Attempt, made: World, pid: int) -> object:
    """Look at a process for an attempt, as its act has asked."""
    if attempt.during is None:
        return None
    try:
        try:
            return attempt.during(made, pid)
        except PermissionError:
            # Root without SYS_PTRACE. Not at once: what else is looked at may be ours alone.
            with as_owner_of(pid):
                return attempt.during(made, pid)
    except PermissionError as error:
        return Blind(f"the host may not look at a process of the sandbox: {error.strerror}")
    except OSError as error:
        # It has ended meanwhile: nothing was found.
        return f"the host could not look: {error.strerror}"


def claimed(answer: Mapping[str, object] | None, ended: str | None) -> ActEvidence:
    """Return the evidence in an answer, or in the end of a process without one."""
    if answer is None:
        return ActEvidence(error=ended)
    error = answer.get("error")
    return ActEvidence(
        claim=answer.get("value"),
        error=None if error is None else str(error),
        guarded=bool(answer.get("guarded", False)),
    )
