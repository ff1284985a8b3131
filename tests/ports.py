"""Ports for servers that have to be told one: no process takes it between its choice and its use.

A port that was bound to 0, read and closed is free for everybody again, and the kernel gives it to the
next connection. These lie where the kernel gives out none by itself, and a test process that has one keeps it
from all others until it ends.

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
# Each keeps a port from other processes, for as long as this one lives.
_claims: list[socket.socket] = []


def free_port() -> int:
    """Return a port on which nobody listens, at no address, and which no other test is given."""
    lowest = int(_GIVEN_OUT.read_text().split()[0])
    # Where the kernel gives out all of them, those are as good as others.
    ports = list(range(_FIRST, min(_END, lowest) if lowest > _FIRST else _END))
    random.shuffle(ports)
    for port in ports:
        if _claim(port) and _is_free(port):
            return port
    raise AssertionError(f"all {len(ports)} ports from {_FIRST} on are taken; end what listens there")


def _claim(port: int) -> bool:
    claim = socket.socket(socket.AF_UNIX)
    try:
        # Of this network namespace alone, as ports are, and gone with the process.
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
    """Return all processes that hold the socket which listens at a port."""
    holders = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            held = process.net_connections("tcp")
            if any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in held):
                holders.add(process.pid)
    return holders
