"""The host's end of a worker's connection, which must never make the host wait.

asyncio's own `sock_recv` and `sock_sendall` will not do here, for two reasons. A socket that always has
something to read never lets them suspend, so a worker that writes faster than it is read would keep
every other task, and the clock of its own call, from running. And whether a socket blocks is a property
of the open file, which the worker made and may still hold: it can switch that back on.

Source: recv(2) and send(2) on MSG_DONTWAIT; fcntl(2) on O_NONBLOCK.
"""

import asyncio
import socket

__all__ = ["receive_now", "send_all", "send_now"]

_SEND = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def receive_now(connection: socket.socket, count: int) -> bytes | None:
    """Return up to `count` bytes that have come, empty at the end; None if nothing has.

    Raises:
        OSError: The connection is broken.
    """
    try:
        return connection.recv(count, socket.MSG_DONTWAIT)
    except (BlockingIOError, InterruptedError):
        return None


def send_now(connection: socket.socket, data: bytes | memoryview) -> memoryview:
    """Send what is taken at once; return what is left.

    Raises:
        OSError: The connection is broken.
    """
    left = memoryview(data)
    try:
        return left[connection.send(left, _SEND) :]
    except (BlockingIOError, InterruptedError):
        return left


async def send_all(connection: socket.socket, data: bytes | memoryview) -> None:
    """Send everything. Two sends to one connection must not overlap.

    Raises:
        OSError: The connection is broken.
    """
    left = memoryview(data)
    while left:
        before, left = len(left), send_now(connection, left)
        if len(left) == before:
            await _writable(connection)


async def _writable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(connection, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_writer(connection)
