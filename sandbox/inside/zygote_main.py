"""A zygote: confined first, then it loads one program and forks workers on request.

It is bound to one policy for its whole life, so its workers are born bound, and nothing that the
program does while it loads can reach further than the program may reach when it runs.
"""

import gc
import os
import select
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from sandbox.errors import ConfinementError, LoadError
from sandbox.frames import CONTROL_BYTES, Kind, receive, send
from sandbox.guard.paths import Rules
from sandbox.inside.confine import WorkerLayers, confine_zygote
from sandbox.inside.program import Program
from sandbox.inside.reaper import Reaper
from sandbox.inside.worker_main import run_worker
from sandbox.policy import Policy

__all__ = ["Order", "run_zygote"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the host wants of a new zygote.

    Attributes:
        policy: What it and its workers may touch.
        config: For the program's `load`.
        once: Become the one worker oneself instead of forking: for programs that start threads
            while they load, which cannot be forked safely.
        control: Socket for frames with the host.
        parked: Socket on which workers announce themselves.
        output: Pipe for what the program prints while it loads.
        home: Descriptor of the home, if the policy has one.
    """

    policy: Policy
    config: Mapping[str, object]
    once: bool
    control: int
    parked: int
    output: int
    home: int | None


def run_zygote(order: Order, program: Program, *, parent: int) -> None:
    """Be a zygote until the host lets go. Runs in a process just forked by the forkserver."""
    control = socket.socket(fileno=order.control)
    parked = socket.socket(fileno=order.parked)
    _redirect(order.output)
    # Resolved here, once for all workers and before any code of the author.
    rules = Rules.of(order.policy).resolved()
    try:
        # The task folder is opened before Landlock hides /proc, to count threads later.
        tasks = os.open("/proc/self/task", os.O_RDONLY | os.O_DIRECTORY)
        kept = {0, 1, 2, control.fileno(), parked.fileno(), tasks}
        without = frozenset(order.policy.without)
        layers = confine_zygote(order.policy, home_fd=order.home, keep=kept, parent=parent, without=without)
    except (OSError, ValueError, ConfinementError) as error:
        send(control, Kind.FAILED, {"fault": "confinement", "message": str(error), "line": None})
        return
    try:
        loaded = program.load(order.config)
    except LoadError as error:
        send(control, Kind.FAILED, {"fault": "load", "message": str(error), "line": error.line})
        return
    threads = len(os.listdir(tasks))
    os.close(tasks)
    send(control, Kind.LOADED, {"threads": threads, "hello": loaded})
    if order.once:
        guard = order.policy.guard
        run_worker(program, layers, rules, parked, parent=parent, guard=guard, rehearse=True)
    _serve(control, parked, layers, rules, program, guard=order.policy.guard)


def _serve(
    control: socket.socket,
    parked: socket.socket,
    layers: WorkerLayers,
    rules: Rules,
    program: Program,
    *,
    guard: bool,
) -> None:
    # Frozen objects are never visited by a worker's collector, so their pages stay shared.
    gc.collect()
    gc.freeze()
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
            count, rehearse = _fork_order(frame[1])
            for _ in range(count):
                worker = os.fork()
                if worker == 0:
                    reaper.forget()
                    control.close()
                    run_worker(program, layers, rules, parked, parent=me, guard=guard, rehearse=rehearse)
                workers.add(worker)


def _report_ends(control: socket.socket, reaper: Reaper, workers: set[int]) -> None:
    for pid, status in reaper.reap():
        # The others are orphans that calls have left behind.
        if pid in workers:
            workers.discard(pid)
            send(control, Kind.ENDED, {"pid": pid, "status": status})


def _fork_order(value: object) -> tuple[int, bool]:
    if not isinstance(value, dict):
        raise TypeError(f"the host sent a fork order that is no object: {value!r}")
    return int(value["count"]), bool(value["rehearse"])


def _redirect(output: int) -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
