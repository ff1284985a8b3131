"""A worker: takes its last layers, waits for one call, answers it, and is gone."""

import os
import socket
import traceback
from typing import NoReturn

from sandbox.errors import LoadError
from sandbox.frames import Kind
from sandbox.guard.install import install_guard
from sandbox.guard.paths import Rules
from sandbox.inside.confine import WorkerLayers
from sandbox.inside.program import Channel, Program

__all__ = ["run_worker"]


def run_worker(
    program: Program,
    layers: WorkerLayers,
    rules: Rules,
    parked: socket.socket,
    *,
    parent: int,
    guard: bool,
    rehearse: bool,
) -> NoReturn:
    """Be one worker. Never returns and never raises: the process ends here.

    Args:
        program: What to serve the call with.
        layers: What to put in place beside what was inherited.
        rules: What denials are explained by.
        parked: Socket on which to announce oneself.
        parent: Process id of the zygote.
        guard: Whether the Python patches are put in place.
        rehearse: Whether there is time to walk the way of a call beforehand.
    """
    status = 1
    try:
        layers.apply(parent=parent)
        channel = _park(program, rules, parked, guard=guard, rehearse=rehearse)
        if channel is not None:
            frame = channel.receive()
            if frame is not None and frame[0] is Kind.CALL:
                channel.send(Kind.ANSWER, program.serve(frame[1], channel))
        status = 0
    except BaseException:  # noqa: BLE001 - the last stop: whatever it was, the host must read about it
        traceback.print_exc()
    finally:
        os._exit(status)


def _park(
    program: Program, rules: Rules, parked: socket.socket, *, guard: bool, rehearse: bool
) -> Channel | None:
    """Get ready, and hand the host its end of the connection and of the output pipe."""
    try:
        # The host learns the process id from the kernel (SO_PEERCRED of this pair), not from us.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        channel = Channel(ours, rules)
        if guard:
            install_guard(rules, channel.denied)
        program.prepare(rehearse=rehearse)
    except LoadError as error:
        parked.send(f"failed: {error}".encode()[:60_000])
        return None
    read, write = os.pipe()
    os.dup2(write, 1)
    os.dup2(write, 2)
    socket.send_fds(parked, [b"parked"], [theirs.fileno(), read])
    for descriptor in (theirs.detach(), read, write, parked.detach()):
        os.close(descriptor)
    return channel
