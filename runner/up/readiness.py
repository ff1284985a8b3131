"""Whether a server takes calls: it, and not whoever else may sit on its port."""

import asyncio
import http.client
import json
import os

import psutil

from runner.up.record import ServerRecord, process_of

__all__ = ["fault_of", "holder_of"]

_PATIENCE_S = 3.0
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to ask a server that listens everywhere


async def fault_of(entry: ServerRecord) -> str | None:
    """Say why a server takes no calls; None if it does."""
    return await asyncio.to_thread(_fault, entry)


def holder_of(entry: ServerRecord) -> str | None:
    """Name the process that sits on a server's port and is not the server's, if there is one to be seen."""
    for found in psutil.net_connections("tcp"):
        is_there = found.status == psutil.CONN_LISTEN and found.laddr.port == entry.port
        # We hold the server's own socket.
        if is_there and found.pid not in {entry.pid, os.getpid()}:
            if found.pid is None:
                return "a process of somebody else"
            try:
                return f"process {found.pid} ({psutil.Process(found.pid).name()})"
            except psutil.Error:
                return f"process {found.pid}"
    return None


def _fault(entry: ServerRecord) -> str | None:
    process = process_of(entry)
    if process is None:
        return "it does not run"
    try:
        own = {one.laddr.port for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
    except psutil.Error:
        return "it cannot be looked at"
    if entry.port not in own:
        return "it is starting: it does not listen yet"
    return _asked(entry)


def _asked(entry: ServerRecord) -> str | None:
    connection = http.client.HTTPConnection(_ANY.get(entry.host, entry.host), entry.port, timeout=_PATIENCE_S)
    try:
        # By a name that every server answers to.
        connection.request("GET", "/readyz", headers={"Host": "localhost"})
        answer = connection.getresponse()
        said = answer.read(1 << 16)
    except TimeoutError:
        return f"it is starting, or does not answer: nothing came within {_PATIENCE_S:g} s"
    except (OSError, http.client.HTTPException) as error:
        return f"it does not answer: {error}"
    finally:
        connection.close()
    if answer.status == http.client.OK:
        return None
    try:
        return "; ".join(f"{part}: {why}" for part, why in json.loads(said)["failed"].items())
    except (ValueError, LookupError, AttributeError, TypeError):
        return f"it answers {answer.status}"
