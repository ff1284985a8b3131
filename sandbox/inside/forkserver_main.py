"""The forkserver: imports the framework once and forks a zygote for each policy.

It never loads code of a tool author, so it may hold what a zygote must not: the right to bind a
child to any home. It ends when the host ends or closes the control socket, and everything below it
ends with it: it is the nearest subreaper of orphans below it, and every process in the session of an
ended zygote is killed. Death with the parent would not suffice: children of a worker do not inherit
that setting, and a tool file can leave its zygote's process group.

usage: python -m sandbox.inside.forkserver_main CONTROL_FD HOST_PID PROGRAM_MODULE [lasting]
"""

import contextlib
import errno
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.errors import ConfinementError, in_words
from sandbox.frames import CONTROL_BYTES, FrameKind, receive, send
from sandbox.inside.immortal import make_immortal
from sandbox.inside.program import Program
from sandbox.inside.reaper import AGAIN_S, Reaper
from sandbox.inside.session import end_session
from sandbox.inside.zygote_main import Order, run_zygote
from sandbox.layers import cgroup, namespaces, oom
from sandbox.layers.privileges import adopt_orphans
from sandbox.policy import Limits

__all__ = ["imported", "main", "serve_orders", "settle", "watch"]

_END_S = 3.0


def main() -> None:
    """Serve zygote orders until the host disconnects."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    try:
        host = watch(int(sys.argv[2]))
    except ProcessLookupError:
        # The host ended before this process started, so there is no one to report to.
        return
    settle()
    serve_orders(control, host, imported(sys.argv[3], lasting=sys.argv[4:] == ["lasting"]))


def settle() -> None:
    """Set this process up as the ancestor of all tool processes."""
    adopt_orphans()
    with contextlib.suppress(OSError):
        oom.offer(oom.STARTS_OTHERS)
    # Forked processes work ahead of calls or are about to end. On wake-up they must not preempt the
    # host, which has an answer to deliver. SCHED_BATCH still gives them their fair share.
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    # A terminal's Ctrl-C goes to the whole foreground group; only the host reacts to it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def imported(name: str, *, lasting: bool) -> Program:
    """Import a program and run its `begin`, so that forked processes share all of it.

    Args:
        name: Module with a `PROGRAM`.
        lasting: Whether it is for many calls, so that preparing them well is worth time at the start.
    """
    # The collector would traverse the imported objects again and again, for a fifth of the import time.
    gc.disable()
    program: Program = importlib.import_module(name).PROGRAM
    program.begin()
    gc.enable()
    gc.collect()
    if lasting:
        # Before the freeze, after which the collector no longer lists these objects.
        make_immortal()
    gc.freeze()
    return program


def serve_orders(control: socket.socket, host: int, program: Program) -> None:
    """Serve zygote orders until the host closes the socket, and end the zygotes.

    Args:
        control: Our end of the control socket.
        host: Descriptor that is readable once the host has ended.
        program: What zygotes offer.
    """
    server = _Forkserver(control=control, host=host, program=program)
    try:
        send(control, FrameKind.STARTED, {"pid": os.getpid()})
        server.serve()
    except (BrokenPipeError, ConnectionResetError):
        # The host ended while a frame was sent to it.
        pass
    finally:
        server.end()


@dataclass(slots=True, kw_only=True)
class _Forkserver:
    """State for serving orders, including the zygotes not yet reaped."""

    control: socket.socket
    host: int
    program: Program
    reaper: Reaper = field(default_factory=Reaper)
    zygotes: dict[int, tuple[Path, ...]] = field(default_factory=dict)
    itself: int = field(default_factory=lambda: os.pidfd_open(os.getpid()))
    forked: int = 0

    def serve(self) -> None:
        """Serve orders until the host disconnects."""
        poll = select.poll()
        for watched in (self.control.fileno(), self.host, self.reaper.wake_fd):
            poll.register(watched, select.POLLIN)
        while True:
            ready = [fd for fd, _event in poll.poll(1000 * AGAIN_S if self.reaper.holds else None)]
            if self.host in ready:
                return
            if self.reaper.wake_fd in ready or self.reaper.holds:
                for pid, status in self._reaped():
                    send(self.control, FrameKind.ENDED, {"pid": pid, "status": status})
            if self.control.fileno() in ready:
                frame = receive(self.control, CONTROL_BYTES)
                if frame is None:
                    return
                self._answer(*frame)

    def end(self) -> None:
        """End every zygote and all remaining processes of their sessions, within a bound."""
        for zygote in self.zygotes:
            os.kill(zygote, signal.SIGKILL)
        deadline = time.monotonic() + _END_S
        while self.zygotes and time.monotonic() < deadline:
            select.select([self.reaper.wake_fd], [], [], AGAIN_S)
            for _ended in self._reaped():
                pass

    def _reaped(self) -> Iterator[tuple[int, int]]:
        """Yield the zygotes that have ended with all processes of their sessions, and their wait status."""
        for pid, status in self.reaper.reap(self._may_reap, among=self.zygotes.keys()):
            if pid in self.zygotes:
                cgroup.remove(self.zygotes.pop(pid))
                yield pid, status

    def _may_reap(self, pid: int) -> bool:
        # Before the reaping, after which the session id could be reused.
        return pid not in self.zygotes or end_session(pid)

    def _answer(self, kind: FrameKind, value: object, descriptors: list[int]) -> None:
        if not isinstance(value, Mapping):
            raise TypeError(f"the host sent an order that is not an object: {value!r}")
        if kind is FrameKind.PING:
            send(self.control, FrameKind.PING, value)
            return
        try:
            limits = Limits(**value["limits"])
            pid = self._fork_zygote(limits, descriptors, namespaced=bool(value["namespaces"]))
        except OSError as error:
            # The others continue: a fork that fails for one user may succeed for the next.
            send(self.control, FrameKind.FAILED, {"order": value["order"], "message": error.strerror})
        else:
            send(self.control, FrameKind.STARTED, {"order": value["order"], "pid": pid})
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _fork_zygote(self, limits: Limits, descriptors: list[int], *, namespaced: bool) -> int:
        """Fork a zygote; return its process id.

        Raises:
            OSError: No process can be started.
        """
        own_users = namespaced and namespaces.needs_user_namespace()
        parent = 0 if namespaced else os.getpid()
        pid, cgroups, fault = self._fork(limits, own_users=own_users) if namespaced else (os.fork(), (), None)
        if pid == 0:
            try:
                self.reaper.forget()
                self.control.close()
                order = Order(
                    control=descriptors[0],
                    parked=descriptors[1],
                    output=descriptors[2],
                    home=descriptors[3] if len(descriptors) > 3 else None,
                    forkserver=self.itself,
                    cgroups=cgroups,
                    own_users=own_users,
                    fault=fault,
                )
                run_zygote(order, self.program, parent=parent)
            finally:
                os._exit(70)
        self.zygotes[pid] = cgroups
        return pid

    def _fork(
        self, limits: Limits, *, own_users: bool
    ) -> tuple[int, tuple[Path, ...], ConfinementError | None]:
        """Fork into a cgroup and a pid namespace; the child reports a failure of either."""
        cgroups: tuple[Path, ...] = ()
        self.forked += 1
        try:
            cgroups = cgroup.make(f"{os.getpid()}-{self.forked}", limits)
            return namespaces.fork_first_process(own_users=own_users), cgroups, None
        except OSError as error:
            cgroup.remove(cgroups)
            return os.fork(), (), ConfinementError("namespaces", in_words(error))


def watch(parent: int) -> int:
    """Return a descriptor that is readable once the parent has ended.

    Raises:
        ProcessLookupError: It has ended already.
    """
    descriptor = os.pidfd_open(parent)
    if os.getppid() != parent:
        raise ProcessLookupError(errno.ESRCH, f"the host process {parent} has ended already")
    return descriptor


if __name__ == "__main__":
    main()
