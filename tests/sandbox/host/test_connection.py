"""The host never closes in its own time what others gave it, and never reads what has no place."""

import asyncio
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
from support import becomes

from sandbox.errors import FrameError
from sandbox.host.closer import Closer
from sandbox.host.connection import Connection
from sandbox.loop_share import LoopShare

pytestmark = pytest.mark.kernel

_SO_PASSRIGHTS = 83
_LINGER_S = 1
# The kernel counts in ticks of its own.
_WAITED_S = 0.9 * _LINGER_S


def slow_to_close(stack: ExitStack) -> int:
    """Return the one descriptor of something that is closed as slowly as it is told to be."""
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    client = socket.create_connection(server.getsockname())
    stack.enter_context(server.accept()[0])
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, _LINGER_S))
    client.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            client.send(b"x" * (1 << 20))
    return client.detach()


def give(end: socket.socket, data: bytes, descriptor: int) -> None:
    socket.send_fds(end, [data], [descriptor])
    os.close(descriptor)


@contextmanager
def connection(closer: Closer, *, older_kernel: bool) -> Iterator[tuple[Connection, socket.socket]]:
    ours, theirs = socket.socketpair()
    end = Connection(ours, closer, LoopShare())
    if older_kernel:
        ours.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 1)
    with theirs:
        yield end, theirs
    end.close()


def seconds_of(act: Callable[[], object]) -> float:
    started = time.monotonic()
    act()
    return time.monotonic() - started


async def closed(closer: Closer) -> None:
    assert await becomes(lambda: not closer.left)


def knows_passrights() -> bool:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            ours.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)
        except OSError:
            return False
    return True


def test_kernel_support_refuses_to_send_unexpected_descriptors() -> None:
    with connection(Closer(), older_kernel=False) as (end, theirs):
        if knows_passrights():
            with pytest.raises(PermissionError):
                socket.send_fds(theirs, [b"x"], [0])
        theirs.send(b"y")

        assert end.receive_now(2) == b"y"


@pytest.mark.anyio
async def test_unexpected_descriptors_end_connection_without_delay() -> None:
    closer = Closer()
    with ExitStack() as stack, connection(closer, older_kernel=True) as (end, theirs):
        give(theirs, b"plain", slow_to_close(stack))
        plain = seconds_of(lambda: end.end.recv(100))
        give(theirs, b"ours", slow_to_close(stack))

        def hear() -> None:
            with pytest.raises(FrameError, match="1 open descriptors"):
                end.receive_now(100)

        ours = seconds_of(hear)

        assert plain > _WAITED_S > ours
        assert len(closer.left) == 1
        await closed(closer)


@pytest.mark.anyio
async def test_connection_with_unread_descriptors_closes_at_once() -> None:
    closer = Closer()
    with ExitStack() as stack:
        ours, theirs = socket.socketpair()
        give(theirs, b"unread", slow_to_close(stack))
        plain = seconds_of(ours.close)
        with connection(closer, older_kernel=True) as (end, other):
            other.send(b"x")
            give(other, b"unread", slow_to_close(stack))

            quick = seconds_of(end.close)

        assert plain > _WAITED_S > quick
        await closed(closer)
        theirs.close()


@pytest.mark.anyio
async def test_connection_expecting_descriptors_receives_one() -> None:
    closer = Closer()
    with ExitStack() as stack:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end = Connection(ours, closer, LoopShare(), takes_descriptors=True)
        give(theirs, b"heard", os.open("/dev/null", os.O_RDONLY))
        theirs.send(b"")
        give(theirs, b"unread", slow_to_close(stack))

        message, descriptors = end.receive_with(100) or (b"", [])
        quick = seconds_of(end.close)

        assert (message, len(descriptors), quick < _WAITED_S) == (b"heard", 1, True)
        assert not os.get_inheritable(descriptors[0])
        closer.close(*descriptors)
        await closed(closer)
        theirs.close()


@pytest.mark.parametrize("send_s", [0, 0.015])
def test_sends_to_a_widely_watched_socket_are_noticed(send_s: float) -> None:
    ours, theirs = socket.socketpair()
    slowed: list[bool] = []

    def processor_time_of_a_send() -> float:
        began = time.thread_time()
        ours.send(b"x")
        spent_s = time.thread_time() - began
        theirs.recv(1)
        return spent_s

    async def send() -> None:
        share = LoopShare(slowed=lambda: slowed.append(True))
        end = Connection(ours, Closer(), share)
        for _ in range(50):
            end.send_now(b"x")
            await asyncio.sleep(0)
        end.close()

    with theirs, ExitStack() as stack:
        copies = [stack.enter_context(theirs.dup()) for _ in range(300)]
        # A faster machine needs more watches, and the second send to one is quicker than the first.
        while min(processor_time_of_a_send() for _ in range(5)) < send_s:
            for epoll in [stack.enter_context(select.epoll()) for _ in range(100)]:
                for copy in copies:
                    epoll.register(copy, select.EPOLLIN | select.EPOLLET)
        asyncio.run(send())

    assert bool(slowed) is (send_s > 0)


def test_empty_close_needs_no_thread() -> None:
    closer = Closer()
    with connection(closer, older_kernel=True) as (end, theirs):
        theirs.send(b"x" * 1000)
        number = end.fileno()

        end.close()

        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)
        with pytest.raises(BrokenPipeError):
            theirs.send(b"y")


@pytest.mark.anyio
async def test_descriptors_are_all_received_with_extra_control_data() -> None:
    closer = Closer()
    with connection(closer, older_kernel=True) as (end, theirs):
        # A worker that kept a copy of our end can set this.
        end.end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        socket.send_fds(theirs, [b"x"], [0] * 253)

        with pytest.raises(FrameError, match="253 open descriptors"):
            end.receive_now(100)

        await closed(closer)


@pytest.mark.anyio
async def test_closer_closes_in_order_and_restarts_after_a_pause() -> None:
    closer = Closer()
    for _ in range(3):
        read, write = os.pipe()
        closer.close(write, read, -1)
        await closed(closer)

        for descriptor in (read, write):
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)
