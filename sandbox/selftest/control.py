"""Controls: the act of each attempt in a process without any layer, of which only that process is killed.

One process imports the program and forks a child for each control, like a forkserver without confinement.

usage: python -m sandbox.selftest.control CONTROL_FD PROGRAM_MODULE
"""

import contextlib
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NoReturn

from sandbox.denials.paths import PathRules
from sandbox.errors import FrameError, SandboxError
from sandbox.frames import CONTROL_BYTES, FrameKind, receive, send
from sandbox.fsuid import as_owner_of
from sandbox.inside.program import Channel, Program
from sandbox.policy import MIB
from sandbox.selftest.attempt import ActEvidence, Attempt, Blind
from sandbox.selftest.world import Ground, World, world

__all__ = ["Controls", "claimed", "controls", "looked", "main"]

_TAKES_ANYTHING = 1024 * MIB
_GONE_S = 5.0


@dataclass(slots=True, kw_only=True)
class Controls:
    """Runner of unconfined acts, created by `controls`. Thread-safe."""

    ground: Ground
    control: socket.socket
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, attempt: Attempt) -> tuple[bool, ActEvidence]:
        """Run an act in a world of its own; return whether it escaped, and the evidence.

        Raises:
            SandboxError: The process that runs the controls has ended.
        """
        ours, theirs = socket.socketpair()
        with world(self.ground) as bare, tempfile.TemporaryFile(dir=self.ground.homes.parent) as output, ours:
            # The control runs as our own user, whatever user owns the home.
            made = replace(bare, uid=os.geteuid())
            with theirs:
                pid = self._forked(theirs.fileno(), output.fileno())
            # It waits for its call. Once it has ended, its pid could be reused.
            child = os.pidfd_open(pid)
            try:
                call = {"id": attempt.id, "place": made.place.to_json(), "folder": str(made.path)}
                send(ours, FrameKind.CALL, call)
                during, answer = _converse(attempt, made, ours, pid)
                if answer is not None:
                    # An act that never answers is not ended here: only a host with limits does that.
                    _kill(child)
                printed = os.fstat(output.fileno()).st_size
                seen = replace(claimed(answer, "no answer"), during=during, output_bytes=printed, naive=True)
                return attempt.escaped(made, seen), seen
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                _kill(child)
                os.close(child)

    def _forked(self, connection: int, output: int) -> int:
        frame = None
        with self._lock, contextlib.suppress(OSError):
            send(self.control, FrameKind.FORK, None, [connection, output])
            frame = receive(self.control, CONTROL_BYTES)
        if frame is None or not isinstance(frame[1], dict):
            raise SandboxError(
                "the process that runs the controls has ended; its last words are on standard error"
            )
        return int(frame[1]["pid"])


def _converse(
    attempt: Attempt, made: World, connection: socket.socket, pid: int
) -> tuple[object, Mapping[str, object] | None]:
    """Receive until the answer, the end or the limit; return the findings meanwhile, and the answer."""
    during = None
    deadline = time.monotonic() + attempt.limit_s
    with contextlib.suppress(TimeoutError, ConnectionError, FrameError):
        connection.settimeout(attempt.limit_s)
        while (frame := receive(connection, _TAKES_ANYTHING)) is not None:
            kind, value, _ = frame
            if kind is FrameKind.ANSWER and isinstance(value, Mapping):
                return during, value
            if kind is FrameKind.REQUEST:
                during = looked(attempt, made, pid)
                send(connection, FrameKind.REPLY, {"id": 1})
            connection.settimeout(max(0.001, deadline - time.monotonic()))
    return during, None


def _kill(child: int) -> None:
    """Kill a process, and wait until it has ended."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(child, signal.SIGKILL)
    select.select([child], [], [], _GONE_S)


@contextmanager
def controls(program: str, ground: Ground, environment: Mapping[str, str]) -> Iterator[Controls]:
    """Start the process that forks controls, with exactly this environment, and end it on exit."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), program],
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
    """Inspect a process for an attempt, at the request of its act."""
    if attempt.during is None:
        return None
    try:
        try:
            return attempt.during(made, pid)
        except PermissionError:
            # Root without CAP_SYS_PTRACE. Tried second: other inspected files may be accessible only to us.
            with as_owner_of(pid):
                return attempt.during(made, pid)
    except PermissionError as error:
        return Blind(f"the host may not look at a process of the sandbox: {error.strerror}")
    except OSError as error:
        # It has ended meanwhile, without a finding.
        return f"the host could not look: {error.strerror}"


def claimed(answer: Mapping[str, object] | None, ended: str | None) -> ActEvidence:
    """Return the evidence in an answer, or in the end of a process without one."""
    if answer is None:
        return ActEvidence(error=ended)
    error = None if answer.get("error") is None else str(answer["error"])
    return ActEvidence(claim=answer.get("value"), error=error, guarded=bool(answer.get("guarded", False)))


def main() -> None:
    """Fork a child for each order, until the host disconnects."""
    program: Program = importlib.import_module(sys.argv[2]).PROGRAM
    # A terminal's Ctrl-C goes to the whole foreground group; only the host reacts to it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The children are not waited for, so the kernel need not keep zombies.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as control:
        control.set_inheritable(False)
        while (order := receive(control, CONTROL_BYTES)) is not None:
            connection, output = order[2]
            pid = os.fork()
            if pid == 0:
                control.close()
                _serve(program, connection, output)
            os.close(connection)
            os.close(output)
            send(control, FrameKind.STARTED, {"pid": pid})


def _serve(program: Program, connection: int, output: int) -> NoReturn:
    """Serve one call, then wait to be killed."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # A group of its own, so that an act that manipulates groups affects only itself.
        os.setpgid(0, 0)
        for standard in (1, 2):
            os.dup2(output, standard)
        os.close(output)
        channel = Channel(socket.socket(fileno=connection), PathRules())
        frame = channel.receive()
        if frame is not None and isinstance(frame[1], Mapping):
            os.chdir(str(frame[1]["folder"]))
            channel.send(FrameKind.ANSWER, program.serve(frame[1], channel))
            channel.receive()
        status = 0
    except BaseException:  # noqa: BLE001 - the last stop, as in a worker: whatever it was, somebody must read it
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
