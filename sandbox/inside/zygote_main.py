"""A zygote: confined first, then it loads one program and forks workers on request.

It is bound to one policy for its whole life, so its workers are confined from the start, and the
program can access no more while it loads than while it runs.
"""

import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from sandbox.denials.install import install_guard
from sandbox.denials.paths import PathRules
from sandbox.errors import ConfinementError, LoadError, in_words
from sandbox.frames import CONTROL_BYTES, GATE, NO_PROCESS, FrameKind, receive, send
from sandbox.inside import sharing
from sandbox.inside.confine import confine_zygote
from sandbox.inside.program import Program
from sandbox.inside.reaper import Reaper
from sandbox.inside.worker_main import Birth, run_worker
from sandbox.policy import Policy

__all__ = ["Order", "run_zygote"]

# wait(2): children whose exit sends no SIGCHLD too.
_WALL = 0x4000_0000


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Order of the host for a new zygote.

    Attributes:
        control: Socket for frames with the host. The first frame holds data hidden from the forkserver.
        parked: Socket on which workers announce themselves.
        output: Pipe for the program's output while it loads.
        home: Descriptor of the home, if the policy has one.
        forkserver: Descriptor that is readable once the forkserver has ended.
        cgroups: Folders of the control groups made for it.
        own_users: Whether it is in a user namespace of its own.
        fault: Why it could not be forked as the policy demands, or None.
    """

    control: int
    parked: int
    output: int
    home: int | None
    forkserver: int
    cgroups: tuple[Path, ...]
    own_users: bool
    fault: ConfinementError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """Instructions of the host to a zygote.

    Attributes:
        policy: What it and its workers may touch.
        config: For the program's `load`.
        once: Whether to become the only worker itself instead of forking: for programs that start
            threads while they load, which cannot be forked safely.
    """

    policy: Policy
    config: Mapping[str, object]
    once: bool


def run_zygote(order: Order, program: Program, *, parent: int) -> None:
    """Run as a zygote until the host disconnects, in a process just forked by the forkserver.

    Args:
        order: The order of the host.
        program: The program to load.
        parent: Process id of the forkserver; 0 in a pid namespace, since it is outside.
    """
    control = socket.socket(fileno=order.control)
    parked = socket.socket(fileno=order.parked)
    _redirect(order.output)
    received = _receive(control)
    if received is None:
        return
    policy = received.policy
    # Resolved here, once for all workers and before any author code runs.
    rules = PathRules.of(policy).resolved()
    try:
        if order.fault is not None:
            raise order.fault
        descriptors = {0, 1, 2, control.fileno(), parked.fileno(), order.forkserver}
        without = frozenset(policy.without)
        layers = confine_zygote(
            policy,
            home_fd=order.home,
            keep=descriptors,
            parent=parent,
            without=without,
            cgroups=order.cgroups,
            own_users=order.own_users,
            forks=not received.once,
            hand_over=lambda gate: _hand_over(parked, gate),
        )
        # In a pid namespace the parent has no pid by which its life could be checked.
        if select.select([order.forkserver], [], [], 0)[0]:
            return
        os.close(order.forkserver)
    except (OSError, ValueError, ConfinementError) as error:
        send(control, FrameKind.FAILED, {"fault": "confinement", "message": in_words(error), "line": None})
        return
    sharing.install(policy.home, sockets=policy.sockets, times=policy.namespaces or policy.has_own_id)
    try:
        loaded = program.load(received.config)
    except LoadError as error:
        facts = {"message": str(error), "line": error.line, "is_exit": error.is_exit}
        send(control, FrameKind.FAILED, {"fault": "load", **facts})
        return
    at_load = {"threads": layers.threads(), "children": _has_children()}
    send(control, FrameKind.LOADED, {**at_load, "hello": loaded})
    if not received.once:
        program.warm_up()
    # Once for all workers, and after the load, which may do more than a call.
    recorder = install_guard(rules) if policy.guard else None
    birth = Birth(program=program, layers=layers, rules=rules, recorder=recorder, parked=parked)
    if received.once:
        run_worker(birth, parent=parent, warm=True)
    _serve(control, birth)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | _WALL)
    except ChildProcessError:
        return False
    return True


def _receive(control: socket.socket) -> _Said | None:
    frame = receive(control, CONTROL_BYTES)
    if frame is None:
        return None
    value = frame[1]
    if not isinstance(value, Mapping):
        raise TypeError(f"the host sent an order that is not an object: {value!r}")
    policy = Policy.from_json(value["policy"])
    return _Said(policy=policy, config=value["config"], once=bool(value["once"]))


def _hand_over(parked: socket.socket, gate: int) -> None:
    """Send the gate to the host, before author code is loaded and could keep a copy of it."""
    socket.send_fds(parked, [GATE], [gate])
    os.close(gate)


def _serve(control: socket.socket, birth: Birth) -> None:
    # A worker's collector never visits frozen objects, so their pages stay shared.
    gc.collect()
    gc.freeze()
    birth.layers.ease_forks()
    reaper = Reaper()
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(reaper.wake_fd, select.POLLIN)
    me = os.getpid()
    workers: set[int] = set()
    while True:
        for fd, _event in poll.poll():
            if fd == reaper.wake_fd:
                _report_ends(control, reaper, workers)
                continue
            frame = receive(control, CONTROL_BYTES)
            if frame is None:
                return
            count, warm = _fork_order(frame[1])
            for _ in range(count):
                worker = _fork(birth.parked)
                if worker is None:
                    continue
                if worker == 0:
                    reaper.forget()
                    control.close()
                    run_worker(birth, parent=me, warm=warm)
                workers.add(worker)


def _fork(parked: socket.socket) -> int | None:
    """Fork, and return like `os.fork`; if no process can be started, report it and return None."""
    try:
        return os.fork()
    except OSError as error:
        parked.send(NO_PROCESS + str(error.strerror).encode())
        return None


def _report_ends(control: socket.socket, reaper: Reaper, workers: set[int]) -> None:
    for pid, status in reaper.reap():
        # Other processes are orphans left behind by calls.
        if pid in workers:
            workers.discard(pid)
            send(control, FrameKind.ENDED, {"pid": pid, "status": status})


def _fork_order(value: object) -> tuple[int, bool]:
    if not isinstance(value, dict):
        raise TypeError(f"the host sent a fork order that is not an object: {value!r}")
    return int(value["count"]), bool(value["warm"])


def _redirect(output: int) -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    # The streams of the start fail to `reconfigure` if the host's standard error is a file: they would seek.
    sys.stdout, sys.stderr = _reopened(1, sys.stdout), _reopened(2, sys.stderr)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _reopened(descriptor: int, stream: TextIO | None) -> TextIO:
    """Return a new stream of a descriptor, encoded like the present one."""
    encoding, errors = getattr(stream, "encoding", None), getattr(stream, "errors", None)
    return open(descriptor, "w", buffering=1, encoding=encoding, errors=errors, closefd=False)
