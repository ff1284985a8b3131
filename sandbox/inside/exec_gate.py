"""The gate of a single confined command: asked by the kernel, answered by the process that waits for it.

That process has no event loop, and waits in the kernel for the end; so a thread has one.

Source: `sandbox.network.gate`, `sandbox.network.egress`.
"""

import asyncio
import socket
import threading

from sandbox.frames import GATE
from sandbox.network.destinations import Destinations
from sandbox.network.egress import Egress
from sandbox.network.gate import Gate
from sandbox.policy import Policy

__all__ = ["serve_in_a_thread"]


def serve_in_a_thread(channel: socket.socket, policy: Policy) -> None:
    """Answer what comes through the gate, which comes through `channel`, until this process ends."""
    threading.Thread(target=_serve, args=(channel, policy), name="gate of the command", daemon=True).start()


def _serve(channel: socket.socket, policy: Policy) -> None:
    with channel:
        _, descriptors, _, _ = socket.recv_fds(channel, len(GATE), 1)
    # None, if it could not be confined and says so itself.
    if descriptors:
        asyncio.run(_answer(descriptors[0], policy))


async def _answer(descriptor: int, policy: Policy) -> None:
    exits = Egress(
        reach=frozenset(policy.reach),
        destinations=Destinations.parse(policy.net),
        closed_ports=frozenset(policy.closed_ports),
    )
    Gate(listener=descriptor, ways=exits, sockets=policy.home if policy.sockets else None)
    await asyncio.Event().wait()
