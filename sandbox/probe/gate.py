"""Probe of the gate, by a connection through it.

Container profiles may deny any of its system calls, and Yama may keep this process from reading the memory
of its descendants. So a confined child requests one connection, which this process makes.

Source: `sandbox.network.gate`.
"""

import asyncio
import os
import signal
import socket

from sandbox.errors import in_words
from sandbox.layers import identity, seccomp
from sandbox.layers.privileges import refuse_new_privileges
from sandbox.loop_share import LoopShare
from sandbox.network.egress import Egress
from sandbox.network.gate import Gate
from sandbox.probe.machine import LayerReport

__all__ = ["try_gate"]

_BOUND_S = 10
_MOST_BYTES = 4096


def try_gate(uid: int | None = None) -> LayerReport:
    """Try the gate for links and network access: a forked child makes a request, this process connects.

    Do not call it in a running event loop: it runs one of its own.

    Args:
        uid: User and group id of the child, if workers have one of their own.
    """
    try:
        fault = asyncio.run(_try(uid))
    except OSError as error:
        fault = in_words(error)
    detail = fault or "a confined process was connected to one address"
    return LayerReport(name="gate", enforced=fault is None, detail=detail)


async def _try(uid: int | None) -> str | None:
    """Return the fault, or None."""
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as server:
        here = server.getsockname()
        child = os.fork()
        if child == 0:
            os._exit(_ask_gate(theirs, here, uid))
        pidfd = os.pidfd_open(child)
        try:
            return await _answer_child(ours, here)
        finally:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.waitpid(child, 0)  # noqa: ASYNC222 - it has just been killed
            os.close(pidfd)


def _ask_gate(host: socket.socket, here: tuple[str, int], uid: int | None) -> int:
    """Run as the confined child; return its exit status."""
    try:
        if uid is not None:
            identity.apply(uid)
        refuse_new_privileges()
        architecture = seccomp.supported_architecture()
        listener = seccomp.main_filter(architecture, signals_are_scoped=True, gated=True).load_asking()
        socket.send_fds(host, [b"gate"], [listener])
        with socket.socket() as mine:
            mine.connect(here)
    except OSError as error:
        # The reason replaces the descriptor's message, or follows it.
        host.send(f"{error.strerror}".encode())
        return 1
    host.send(b"+")
    return 0


async def _answer_child(ours: socket.socket, here: tuple[str, int]) -> str | None:
    ours.settimeout(_BOUND_S)
    data, descriptors, _, _ = socket.recv_fds(ours, _MOST_BYTES, 1)
    if not descriptors:
        return f"the kernel takes no filter that asks: {data.decode(errors='replace')}"
    share = LoopShare()
    exits = Egress(reach=frozenset({here}), share=share)
    opened = Gate(listener=descriptors[0], ways=exits, share=share)
    try:
        data = await asyncio.to_thread(ours.recv, _MOST_BYTES)
    except TimeoutError:
        return "the kernel never asked"
    finally:
        opened.close()
    return None if data == b"+" else f"the connection was not made: {data.decode(errors='replace')}"
