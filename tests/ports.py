"""Ports for servers that need an explicit one, without a race between choosing a port and using it.

A port obtained by binding to port 0 is free again once the socket is closed, and the kernel may assign it to
the next connection. These ports are outside the ephemeral range, and a test process reserves each one
against other test processes until it ends.

Source: ip(7), ip_local_port_range; unix(7), "Abstract sockets".
"""

import contextlib
import random
import socket
from pathlib import Path

import psutil

__all__ = ["free_port", "holders_of"]

_FIRST, _END = 12_000, 32_000
_GIVEN_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Each reserves a port for the lifetime of this process.
_claims: list[socket.socket] = []


def free_port() -> int:
    """Return a port that is free on all addresses and reserved for this test process."""
    lowest = int(_GIVEN_OUT.read_text().split()[0])
    # If the ephemeral range includes all of them, use them anyway.
    ports = list(range(_FIRST, min(_END, lowest) if lowest > _FIRST else _END))
    random.shuffle(ports)
    for port in ports:
        if _claim(port) and _is_free(port):
            return port
    raise AssertionError(f"all {len(ports)} ports from {_FIRST} on are taken; end what listens there")


def _claim(port: int) -> bool:
    claim = socket.socket(socket.AF_UNIX)
    try:
        # Abstract names belong to a network namespace, as ports do, and vanish with the process.
        claim.bind(f"\0toolcell-test-port-{port}")
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError:
            return False
    return True


def holders_of(port: int) -> set[int]:
    """Return the ids of all processes that hold a socket listening on a port."""
    holders = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            held = process.net_connections("tcp")
            if any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in held):
                holders.add(process.pid)
    return holders
