"""The gate of a single confined command, served by the process that waits for the command.

That process has no event loop and blocks in wait(2), so a thread runs one. Denials are written to standard
error, since programs rarely name an address that they cannot reach, and never name the reason.

Source: `sandbox.network.gate`, `sandbox.network.egress`.
"""

import asyncio
import contextlib
import os
import socket
import threading

from sandbox.frames import GATE
from sandbox.loop_share import LoopShare
from sandbox.network.destinations import Destinations
from sandbox.network.egress import Egress
from sandbox.network.gate import Gate
from sandbox.policy import Policy

__all__ = ["serve_in_a_thread"]

_MOST_REPORTED = 32


def serve_in_a_thread(channel: socket.socket, policy: Policy) -> None:
    """Answer requests at the gate, received through `channel`, until this process ends."""
    threading.Thread(target=_serve, args=(channel, policy), name="gate of the command", daemon=True).start()


def _serve(channel: socket.socket, policy: Policy) -> None:
    with channel:
        _, descriptors, _, _ = socket.recv_fds(channel, len(GATE), 1)
    # Empty if the child could not be confined, which it reports itself.
    if descriptors:
        asyncio.run(_answer(descriptors[0], policy))


async def _answer(descriptor: int, policy: Policy) -> None:
    reported: set[str] = set()

    def report(place: str) -> None:
        if place not in reported and len(reported) < _MOST_REPORTED:
            reported.add(place)
            with contextlib.suppress(OSError):
                os.write(2, f"runner: connection to {place} denied\n".encode())

    share = LoopShare()
    exits = Egress(
        share=share,
        reach=frozenset(policy.reach),
        destinations=Destinations.parse(policy.net),
        closed_ports=frozenset(policy.closed_ports),
        report=report,
    )
    sockets = policy.home if policy.sockets else None
    Gate(listener=descriptor, ways=exits, share=share, sockets=sockets, report=report)
    await asyncio.Event().wait()
