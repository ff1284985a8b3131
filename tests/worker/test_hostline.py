"""Requests of a worker to its host: each call receives its own replies, whatever earlier calls left."""

import asyncio
import socket

import pytest

from runner.worker.call_scope import HostLine, Waiting
from sandbox.denials.paths import PathRules
from sandbox.frames import FrameKind, receive, send
from sandbox.inside.program import Channel
from sandbox.policy import Policy

pytestmark = pytest.mark.anyio


def request_of(host: socket.socket) -> dict[str, object]:
    """Return what a worker asks."""
    frame = receive(host, 1000)
    assert frame is not None
    assert isinstance(frame[1], dict)
    return frame[1]


async def test_abandoned_request_takes_no_reply_of_next_call() -> None:
    worker, host = socket.socketpair()
    loop = asyncio.get_running_loop()
    waiting: Waiting = {}
    channel = Channel(worker, PathRules.of(Policy()))
    with worker, host:
        left = asyncio.create_task(HostLine(channel, loop, waiting).request("one", None))
        await asyncio.sleep(0)
        pending = asyncio.create_task(HostLine(channel.renewed(), loop, waiting).request("two", None))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.wait({left})
        requests = [request_of(host) for _ in range(2)]
        send(host, FrameKind.REPLY, {"id": requests[1]["id"], "result": {"is": "heard"}})

        assert await pending == {"is": "heard"}
