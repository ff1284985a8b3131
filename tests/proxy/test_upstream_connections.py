"""The connection to a server behind the proxy: who ends it, and how often it reports changed lists."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from far import far_server
from proxying import over_http, over_stdio, proxied, upstreams_for
from support import becomes

from runner.proxy.remote import Announced
from runner.proxy.upstream import Upstream
from runner.users.identity import User

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")]

CHATTY = Path(__file__).with_name("chatty.py")


async def test_drop_of_replaced_connection_keeps_the_new_one(folder: Path, user: str) -> None:
    with far_server([], lambda _method, _params: {}) as url:
        async with upstreams_for(folder, user, over_http(url, "far")) as upstreams:
            upstream = Upstream(
                server=upstreams.ways["far"],
                services=upstreams,
                names=upstreams.names,
                config=upstreams.guard.config,
                user=User(user),
                front=None,
                announced=Announced(),
            )
            first = await upstream.connected()
            await upstream.drop(first)
            second = await upstream.connected()

            # Another request over the first one notices its end only now.
            await upstream.drop(first)
            newer = await upstream.connected()
            # Control: it would have ended the second.
            await upstream.drop(second)
            ended = not upstream.is_connected

    assert first is not second
    assert newer is second
    assert ended


@pytest.mark.kernel
async def test_storm_of_list_changes_reported_once(folder: Path, user: str) -> None:
    received: list[str] = []

    async def note(message: Any) -> None:
        received.append(getattr(message, "method", ""))

    def count() -> int:
        return received.count("notifications/tools/list_changed")

    chatty = over_stdio("chatty", CHATTY)
    async with proxied(folder, user, chatty, mode="legacy", client={"message_handler": note}) as client:
        await client.call_tool("flood", {"kind": "changed", "count": 500})
        assert await becomes(lambda: count() > 0)
        await asyncio.sleep(0.3)
        in_storm = count()
        await client.call_tool("flood", {"kind": "changed", "count": 1})
        assert await becomes(lambda: count() > in_storm)

    # As many as moments have passed meanwhile, on a slow machine.
    assert in_storm < 50
