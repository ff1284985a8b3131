"""Share of the event loop for the long bodies of a user; other users do not wait for them."""

import asyncio
import time
from contextvars import ContextVar

import pytest
from starlette.types import Message, Receive, Scope, Send

from runner.protocol.endpoint import BoundedBodies
from runner.steps.request import SHORT_BYTES

USER: ContextVar[str] = ContextVar("user")


@pytest.mark.anyio
async def test_long_body_after_a_slow_one_waits_for_its_share() -> None:
    served, began, go = list[str](), asyncio.Event(), asyncio.Event()

    async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        if body.startswith(b"b"):
            began.set()
            await go.wait()
        served.append(USER.get())
        if body.startswith(b"c"):
            return
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            # Like a parser.
            pass

    async def discard(message: Message) -> None:
        del message

    app = BoundedBodies(endpoint, user=USER.get)

    async def post(user: str, count: int, letter: bytes = b"a") -> None:
        async def body() -> Message:
            return {"type": "http.request", "body": letter * count}

        USER.set(user)
        await app({"type": "http", "method": "POST", "headers": []}, body, discard)

    long, short = SHORT_BYTES + 1, SHORT_BYTES
    await asyncio.gather(post("ann", long), post("ann", long), post("ann", short), post("bob", long))

    # Its share refills while it waits, and other users' requests look through the shares.
    waiting = asyncio.create_task(post("cat", long, b"b"))
    await began.wait()
    await asyncio.gather(*(post("dan", long, b"c") for _ in range(9)))
    go.set()
    await waiting
    await asyncio.gather(post("cat", long), post("eve", long))

    assert served == ["ann", "ann", "bob", "ann", *["dan"] * 9, "cat", "eve", "cat"]
