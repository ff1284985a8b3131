"""The host's end of a worker's connection, which must never make the host wait.

asyncio's own `sock_recv` and `sock_sendall` will not do here, for two reasons. A socket that always has
something to read never lets them suspend, so a worker that writes faster than it is read would keep
every other task, and the clock of its own call, from running. And whether a socket blocks is a property
of the open file, which the worker made and may still hold: it can switch that back on.

Source: recv(2) and send(2) on MSG_DONTWAIT; fcntl(2) on O_NONBLOCK.
"""

import asyncio
import socket
from collections.abc import Callable

__all__ = ["receive_some", "send_all"]


async def receive_some(connection: socket.socket, count: int) -> bytes:
    """Return up to `count` bytes, empty at the end; every other task gets a turn first.

    Raises:
        OSError: The connection is broken.
    """
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    while True:
        try:
            return connection.recv(count, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            await _ready(connection, loop.add_reader, loop.remove_reader)


async def send_all(connection: socket.socket, data: bytes) -> None:
    """Send everything. Two sends to one connection must not overlap.

    Raises:
        OSError: The connection is broken.
    """
    loop = asyncio.get_running_loop()
    left = memoryview(data)
    while left:
        try:
            left = left[connection.send(left, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]
        except (BlockingIOError, InterruptedError):
            await _ready(connection, loop.add_writer, loop.remove_writer)


async def _ready(
    connection: socket.socket,
    watch: Callable[[socket.socket, Callable[[], None]], None],
    unwatch: Callable[[socket.socket], object],
) -> None:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    watch(connection, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        unwatch(connection)
