"""The host's end of a UNIX socket pair whose other end is not trusted. It never blocks the host.

asyncio's own `sock_recv` and `sock_sendall` are not used, for two reasons. They never suspend while a socket
has something to read, so a worker that writes faster than it is read would keep every other task, and the
timer of its own call, from running. And O_NONBLOCK belongs to the open file description, which the worker
made and may still hold: it can clear the flag.

A plain `recv` or `close` is not used either. A message may carry descriptors. If they are not received, the
kernel closes them within `recv`, and unread ones within `close`, which the other side can make arbitrarily
slow. From Linux 6.16 on, SO_PASSRIGHTS rejects descriptors where none are expected. On older kernels they are
received and closed elsewhere.

Source: recv(2) and send(2) on MSG_DONTWAIT; fcntl(2) on O_NONBLOCK; unix(7); linux
include/uapi/asm-generic/socket.h on SO_PASSRIGHTS; net/unix/af_unix.c.
"""

import array
import asyncio
import contextlib
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field

from sandbox.errors import FrameError
from sandbox.host.closer import Closer
from sandbox.loop_share import LoopShare

__all__ = ["Connection"]

_SEND = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_RECEIVE = int(socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
_CHUNK_BYTES = 1 << 16
# Room for at most 253 descriptors a message, and for other ancillary data that the peer can make the kernel
# add: the kernel closes a descriptor that does not fit at once, in this thread.
_ANCILLARY_BYTES = 8192
_SO_PASSRIGHTS = 83
# Ancillary messages that carry descriptors: those sent, and the pidfd of the sender.
_SCM_PIDFD = 4
_WITH_DESCRIPTORS = (socket.SCM_RIGHTS, _SCM_PIDFD)


@dataclass(slots=True, eq=False)
class Connection:
    """One end of a pair of connected UNIX sockets.

    Attributes:
        end: The socket, now owned by the connection.
        closer: Closes received descriptors, which may take long.
        share: Event loop time used by the other side.
        takes_descriptors: Whether the other side may send descriptors, which `receive_with` returns.
    """

    end: socket.socket
    closer: Closer
    share: LoopShare
    takes_descriptors: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self.end.setblocking(False)  # noqa: FBT003 - the standard library's signature
        if not self.takes_descriptors:
            # Older kernels do not know the option.
            with contextlib.suppress(OSError):
                self.end.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self.end.fileno()

    def receive_now(self, count: int) -> bytes | None:
        """Return up to `count` received bytes, empty at the end; None if there are none yet.

        Raises:
            OSError: The connection is broken.
            FrameError: The message carried descriptors, which are not allowed here.
        """
        received = self.receive_with(count)
        if received is None:
            return None
        data, descriptors = received
        if descriptors:
            self.closer.close(*descriptors)
            raise FrameError(f"{len(descriptors)} open descriptors came with a frame, and none may")
        return data

    def receive_with(self, count: int) -> tuple[bytes, list[int]] | None:
        """Receive like `receive_now`, with descriptors, which the caller then owns.

        Raises:
            OSError: The connection is broken.
        """
        try:
            data, ancillary, _flags, _source = self.share.system_call(
                self.end.recvmsg, count, _ANCILLARY_BYTES, _RECEIVE
            )
        except (BlockingIOError, InterruptedError):
            return None
        return data, _descriptors(ancillary) if ancillary else []

    def send_now(self, data: bytes | memoryview) -> memoryview:
        """Send as much as the socket accepts at once; return the rest.

        Raises:
            OSError: The connection is broken.
        """
        left = memoryview(data)
        try:
            return left[self.share.system_call(self.end.send, left, _SEND) :]
        except (BlockingIOError, InterruptedError):
            return left

    def pass_on(self, data: bytes, descriptor: int) -> None:
        """Send a short message that carries a descriptor.

        Raises:
            OSError: The connection is broken, or the other side has left too many messages unread.
        """
        if self.share.system_call(socket.send_fds, self.end, [data], [descriptor], _SEND) < len(data):
            raise BlockingIOError("it has left its messages unread")

    def end_sending(self) -> None:
        """Shut down the sending side: the peer reads end of file, and may still send.

        Raises:
            OSError: The connection is broken.
        """
        self.share.system_call(self.end.shutdown, socket.SHUT_WR)

    async def send_all(self, data: bytes | memoryview) -> None:
        """Send everything. Two sends to one connection must not overlap.

        Raises:
            OSError: The connection is broken.
        """
        left = memoryview(data)
        while left:
            before, left = len(left), self.send_now(left)
            if len(left) == before:
                await self._writable()

    def close(self) -> None:
        """Close the connection, and discard unread data."""
        if self.end.fileno() < 0:
            return
        if not self.takes_descriptors:
            try:
                # Read to the end: `close` would close unread descriptors in this thread.
                self.end.shutdown(socket.SHUT_RD)
                while self.receive_now(_CHUNK_BYTES):
                    pass
            except (OSError, FrameError):
                pass
            else:
                self.end.close()
                return
        self.closer.close(self.end.detach())

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_writer(self.end, lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            loop.remove_writer(self.end)


def _descriptors(ancillary: Iterable[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind in _WITH_DESCRIPTORS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)
