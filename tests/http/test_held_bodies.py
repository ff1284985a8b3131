"""The bytes of request bodies in flight: bounded for a user, for clients without one, and in all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from body_support import Sender, part_of
from site_support import Served
from starlette.requests import Request
from starlette.responses import JSONResponse
from support import becomes

from runner.http.requests_per_user import HeldBodies, streamed

pytestmark = pytest.mark.anyio

MAX = 1000
MIB = 1024 * 1024


@asynccontextmanager
async def sending(
    bodies: HeldBodies, user: str | None, count: int, client: str = "::1"
) -> AsyncIterator[Sender]:
    """Send so many bytes for a user, and then nothing, until the block ends."""
    sender = Sender()
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "headers": [],
        "client": (client, 1),
    }

    async def serve() -> None:
        with bodies.one(user, scope, sender.receive, sender.send) as body:
            request = Request(scope, body.receive)
            await JSONResponse({"bytes": len(await request.body())})(scope, body.receive, body.send)

    serving = asyncio.create_task(serve())
    sender.pieces.put_nowait(bytes(count))
    assert await becomes(lambda: sender.taken == count)
    await asyncio.sleep(0)
    try:
        yield sender
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def bodies_of(memory_bytes: int = 1000 * MIB, **more: Any) -> HeldBodies:
    return HeldBodies(max_payload_bytes=MAX, memory_bytes=memory_bytes, **more)


async def test_user_holds_two_bodies_and_a_third_is_refused() -> None:
    bodies = bodies_of()
    async with (
        sending(bodies, "ann", MAX) as first,
        sending(bodies, "ann", MAX) as second,
        sending(bodies, "ann", 1) as third,
        sending(bodies, "bob", MAX) as other,
    ):
        assert [each.status for each in (first, second, third, other)] == [None, None, 429, None]
        assert "2000 bytes" in third.error
        assert "max_payload_bytes (1000)" in third.error
    async with sending(bodies, "ann", 2 * MAX) as later:
        assert later.status is None


async def test_refused_body_released_while_its_request_continues() -> None:
    bodies = bodies_of()
    async with sending(bodies, "ann", 2 * MAX) as first:
        first.pieces.put_nowait(b"x")
        assert await becomes(lambda: first.status == 429)

        async with sending(bodies, "ann", 2 * MAX) as second:
            assert second.status is None


async def test_whole_body_is_held_until_its_request_ends() -> None:
    bodies, sender = bodies_of(), Sender()
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "headers": []}
    sender.pieces.put_nowait(bytes(2 * MAX))
    sender.pieces.put_nowait(None)

    with bodies.one("ann", scope, sender.receive, sender.send) as body:
        assert len(await Request(scope, body.receive).body()) == 2 * MAX
        async with sending(bodies, "ann", 1) as during:
            assert during.status == 429
    async with sending(bodies, "ann", 1) as after:
        assert after.status is None


async def test_users_together_leave_room_for_a_small_request() -> None:
    bodies = bodies_of(memory_bytes=8 * 4 * MAX)
    assert bodies.most == 4 * MAX
    async with sending(bodies, "ann", 2 * MAX), sending(bodies, "bob", MAX):
        async with sending(bodies, "cid", MAX) as large, sending(bodies, "dan", MAX // 4) as small:
            assert large.status is None
            assert small.status == 503
            assert "4000" in small.error
        async with sending(bodies, "cid", MAX + 1) as larger, sending(bodies, "dan", MAX // 4) as small:
            assert (larger.status, small.status) == (503, None)


async def test_address_without_a_user_has_a_bound_of_its_own() -> None:
    bodies = HeldBodies(max_payload_bytes=MIB, memory_bytes=1000 * MIB)
    async with AsyncExitStack() as stack:
        for _ in range(64):
            first = await stack.enter_async_context(sending(bodies, None, MIB // 64, "2001:db8::1"))
        async with (
            sending(bodies, None, 1, "2001:db8::2") as neighbour,
            sending(bodies, None, 1, "2001:db8:1::") as another,
            sending(bodies, "ann", MIB) as user,
        ):
            assert [each.status for each in (first, neighbour, another, user)] == [None, 413, None, None]
            assert "log in" in neighbour.error
        for _ in range(64):
            await stack.enter_async_context(sending(bodies, None, MIB // 64, "10.0.0.1"))
        async with sending(bodies, None, 1, "10.0.0.2") as all_together:
            assert all_together.status == 429


@pytest.mark.parametrize("user", ["ann", None])
async def test_stalled_body_refused_and_released(user: str | None) -> None:
    bodies = bodies_of(idle_s=0.2)
    async with sending(bodies, user, 2 * MAX) as stalled:
        assert stalled.status is None
        assert await becomes(lambda: stalled.status == 408)
        assert "0.2 seconds" in stalled.error
        async with sending(bodies, user, 2 * MAX) as other:
            assert other.status is None


async def test_streamed_body_is_not_held() -> None:
    bodies, sender = bodies_of(), Sender()
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "headers": []}
    for piece in [bytes(MAX)] * 10 + [None]:
        sender.pieces.put_nowait(piece)

    with bodies.one("ann", scope, sender.receive, sender.send) as body:
        read = [len(piece) async for piece in streamed(Request(scope, body.receive))]
        async with sending(bodies, "ann", 2 * MAX) as other:
            assert (sum(read), other.status, sender.status) == (10 * MAX, None, None)


@pytest.mark.parametrize("path", ["/mcp", "/api/files"])
async def test_routes_share_body_limit_of_user(tmp_path: Path, path: str) -> None:
    """An MCP request and an upload as JSON: what one user has begun counts for the next."""
    web = Served.at(tmp_path, max_payload_bytes=MIB).web
    async with (
        web.router.lifespan_context(web),
        part_of(web, "/mcp", MIB) as first,
        part_of(web, "/mcp", MIB) as second,
        part_of(web, path, 1) as third,
        part_of(web, path, 1, "bob") as other,
    ):
        assert await becomes(lambda: third.status is not None)
        assert [each.status for each in (first, second, third, other)] == [None, None, 429, None]
        assert "max_payload_bytes" in third.error
