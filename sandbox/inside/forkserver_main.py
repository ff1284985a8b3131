"""The forkserver: imports the framework once and forks a zygote for each policy.

It never loads code of a tool author, so it may hold what a zygote must not: the right to bind a
child to any home. It ends when the host closes the control socket, and its zygotes end with it.

usage: python -m sandbox.inside.forkserver_main CONTROL_FD HOST_PID PROGRAM_MODULE
"""

import gc
import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping

from sandbox.frames import CONTROL_BYTES, Kind, receive, send
from sandbox.inside.program import Program
from sandbox.inside.reaper import Reaper
from sandbox.inside.zygote_main import Order, run_zygote
from sandbox.layers.privileges import die_with_parent
from sandbox.policy import Policy

__all__ = ["main"]


def main() -> None:
    """Serve zygote orders until the host lets go."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    die_with_parent(int(sys.argv[2]))
    # A terminal's Ctrl-C goes to the whole foreground group; only the host decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    program: Program = importlib.import_module(sys.argv[3]).PROGRAM
    gc.collect()
    gc.freeze()
    send(control, Kind.STARTED, {"pid": os.getpid()})
    _serve(control, program)


def _serve(control: socket.socket, program: Program) -> None:
    reaper = Reaper()
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(reaper.wake_fd, select.POLLIN)
    while True:
        for fd, _event in poll.poll():
            if fd == reaper.wake_fd:
                for pid, status in reaper.reap():
                    send(control, Kind.ENDED, {"pid": pid, "status": status})
                continue
            frame = receive(control, CONTROL_BYTES)
            if frame is None:
                return
            _fork_zygote(control, reaper, program, frame[1], frame[2])


def _fork_zygote(
    control: socket.socket, reaper: Reaper, program: Program, value: object, descriptors: list[int]
) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(f"the host sent an order that is no object: {value!r}")
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            reaper.forget()
            control.close()
            order = Order(
                policy=Policy.from_json(value["policy"]),
                config=value["config"],
                once=bool(value["once"]),
                control=descriptors[0],
                parked=descriptors[1],
                output=descriptors[2],
                home=descriptors[3] if len(descriptors) > 3 else None,
            )
            run_zygote(order, program, parent=parent)
        finally:
            os._exit(70)
    for descriptor in descriptors:
        os.close(descriptor)
    send(control, Kind.STARTED, {"order": value["order"], "pid": pid})


if __name__ == "__main__":
    main()
