import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client, FastMCP
from mcp.client.subscriptions import ResourceUpdated, listen
from mcp.shared.exceptions import MCPError
from support import SAMPLES, open_toolset

from runner.files.my_files import MyFiles
from runner.protocol.subscriptions import announced
from runner.server.host import make_host
from runner.store.protocol import Origin
from runner.toolset.toolset import Toolset
from runner.users.events import LISTENERS_PER_USER
from runner.users.identity import User

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.kernel,
    # The SDK's client says so of the earlier era, which is served all the same.
    pytest.mark.filterwarnings("ignore:resources/(un)?subscribe is removed"),
]

FILES = "runner://files"


@pytest.fixture
async def toolset(tmp_path: Path) -> AsyncIterator[Toolset]:
    async with open_toolset(SAMPLES / "hello.py", tmp_path) as opened:
        yield opened


def files(toolset: Toolset, user: str) -> MyFiles:
    return toolset.files(User(user))


class Heard:
    """A client's ear for updates."""

    def __init__(self) -> None:
        self.uris: asyncio.Queue[str] = asyncio.Queue()

    async def __call__(self, message: Any) -> None:
        uri = getattr(getattr(message, "params", None), "uri", None)
        if uri is not None:
            self.uris.put_nowait(str(uri))

    async def next(self) -> str:
        return await self.uris.get()


@asynccontextmanager
async def connected(
    toolset: Toolset, mode: str, listener: Heard | None = None
) -> "AsyncIterator[Client[Any]]":
    app: FastMCP[Any] = make_host(toolset, transport="stdio", download_url=None)
    options: dict[str, Any] = {"message_handler": listener} if listener else {}
    async with Client(app, mode=mode, **options) as client:
        yield client


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the user of the operating system be one of these tests' own."""
    user = f"t-{uuid.uuid4().hex[:12]}"
    monkeypatch.setattr("runner.users.identity.os_user", lambda: user)
    return user


async def test_session_with_too_many_or_long_uris_is_refused(toolset: Toolset, named: str) -> None:
    async with connected(toolset, "legacy") as client:
        for number in range(512):
            await client.session.subscribe_resource(f"artifact://{number}")
        with pytest.raises(MCPError, match="512 URIs"):
            await client.session.subscribe_resource("artifact://more")
        await client.session.unsubscribe_resource("artifact://0")
        with pytest.raises(MCPError, match="2048 characters"):
            await client.session.subscribe_resource("artifact://" + "a" * 2048)
        await client.session.subscribe_resource("artifact://more")


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_both_eras_announce_subscription_support(toolset: Toolset, named: str, mode: str) -> None:
    async with connected(toolset, mode) as client:
        capabilities = client.server_capabilities

    assert capabilities is not None
    assert capabilities.resources is not None
    assert capabilities.resources.subscribe is True


async def test_subscribed_connection_notified_of_files_added_removed(toolset: Toolset, named: str) -> None:
    listener = Heard()

    async with connected(toolset, "legacy", listener) as client:
        await client.session.subscribe_resource(FILES)
        await files(toolset, named).put(b"x", name="a.txt", origin=Origin.UPLOADED)
        came = await listener.next()
        await files(toolset, named).remove("a.txt")
        went = await listener.next()

    assert (came, went) == (FILES, FILES)


async def test_connection_notified_of_its_subscriptions_only(toolset: Toolset, named: str) -> None:
    listener = Heard()
    first = await files(toolset, named).put(b"1", name="a.txt", origin=Origin.UPLOADED)

    async with connected(toolset, "legacy", listener) as client:
        await client.session.subscribe_resource(f"artifact://{first.id}")
        await files(toolset, named).put(b"2", name="b.txt", origin=Origin.UPLOADED)
        await files(toolset, "t-another").put(b"1", name="a.txt", origin=Origin.UPLOADED)
        await files(toolset, named).remove("a.txt")
        only = await listener.next()
        await client.session.unsubscribe_resource(f"artifact://{first.id}")
        await client.session.subscribe_resource(FILES)
        await files(toolset, named).put(b"1", name="a.txt", origin=Origin.UPLOADED)
        then = await listener.next()

    assert only == f"artifact://{first.id}"
    assert then == FILES
    assert listener.uris.empty()


async def test_later_era_listener_notified_of_own_users_files_only(toolset: Toolset, named: str) -> None:
    async with (
        connected(toolset, "auto") as client,
        listen(client.session, resource_subscriptions=[FILES]) as stream,
    ):
        await files(toolset, "t-another").put(b"x", name="a.txt", origin=Origin.UPLOADED)
        await files(toolset, named).put(b"y", name="b.txt", origin=Origin.UPLOADED)
        event = await anext(aiter(stream))
        during = toolset.events.listeners(user=named)

    assert event == ResourceUpdated(uri=FILES)
    assert during == 1


async def test_listening_ends_with_client_and_server(toolset: Toolset, named: str) -> None:
    async with (
        connected(toolset, "auto") as client,
        listen(client.session, resource_subscriptions=[FILES]) as stream,
    ):
        toolset.events.close()
        rest = [event async for event in stream]
    async with connected(toolset, "legacy") as client:
        await client.session.subscribe_resource(FILES)
        during = toolset.events.listeners(user=named)

    assert rest == []
    assert during == 1
    assert toolset.events.listeners(user=named) == 0


async def test_resource_without_announcements_not_subscribable(toolset: Toolset, named: str) -> None:
    async with connected(toolset, "legacy") as client:
        await client.session.subscribe_resource(FILES)
        with pytest.raises(MCPError, match="announces no changes"):
            await client.session.subscribe_resource("data://table")


OWN = """
import mcp_types
from fastmcp import Context, FastMCP

mcp = FastMCP("live")


@mcp.resource("live://now")
def now() -> str:
    return "now"


@mcp.resource("live://of/{name}")
def of(name: str) -> str:
    return name


@mcp.tool
async def tick(uri: str, ctx: Context) -> str:
    params = mcp_types.ResourceUpdatedNotificationParams(uri=uri)
    await ctx.send_notification(mcp_types.ResourceUpdatedNotification(params=params))
    return "ticked"
"""


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Toolset]:
    (tmp_path / "live.py").write_text(OWN)
    async with open_toolset(tmp_path / "live.py", tmp_path) as opened:
        yield opened


@pytest.mark.parametrize("uri", ["live://now", "live://of/ann"])
async def test_subscribed_connection_notified_of_files_own_resource(
    live: Toolset, named: str, uri: str
) -> None:
    """Source: S4-12."""
    listener = Heard()

    async with connected(live, "legacy", listener) as client:
        await client.call_tool("tick", {"uri": uri})
        await client.session.subscribe_resource(uri)
        await client.session.subscribe_resource(FILES)
        await client.call_tool("tick", {"uri": "live://another"})
        await client.call_tool("tick", {"uri": uri})
        first = await listener.next()
        await client.session.unsubscribe_resource(uri)
        await client.call_tool("tick", {"uri": uri})
        await files(live, named).put(b"x", name="a.txt", origin=Origin.UPLOADED)
        second = await listener.next()

    assert (first, second) == (uri, FILES)
    assert listener.uris.empty()


async def test_later_era_listener_notified_of_files_own_resource(live: Toolset, named: str) -> None:
    """Source: S4-12."""
    async with (
        connected(live, "auto") as client,
        listen(client.session, resource_subscriptions=["live://now"]) as stream,
    ):
        await client.call_tool("tick", {"uri": "live://now"})
        event = await anext(aiter(stream))

    assert event == ResourceUpdated(uri="live://now")


@pytest.mark.parametrize("uri", ["live://elsewhere", "runner://contract"])
async def test_unknown_resource_of_file_not_subscribable(live: Toolset, named: str, uri: str) -> None:
    async with connected(live, "legacy") as client:
        await client.session.subscribe_resource("live://now")
        with pytest.raises(MCPError, match="announces no changes"):
            await client.session.subscribe_resource(uri)


async def test_subscriptions_of_user_bounded(toolset: Toolset, named: str) -> None:
    from contextlib import ExitStack

    async with connected(toolset, "legacy") as client:
        with ExitStack() as stack:
            for _ in range(LISTENERS_PER_USER):
                stack.enter_context(toolset.events.subscribe(user=named))
            with pytest.raises(MCPError, match="subscriptions of this user are open"):
                await client.session.subscribe_resource(FILES)
        await client.session.subscribe_resource(FILES)


@pytest.mark.parametrize("odd", [{}, {"capabilities": None}, {"capabilities": {"resources": None}}])
async def test_odd_discovery_of_tool_file_relayed(odd: dict[str, Any]) -> None:
    assert announced(odd).keys() == odd.keys()
