"""Of several servers behind one proxy none answers for what is another's: pages, resources, tasks."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from proxying import RawSession, proxied

from runner.proxy.targets import Target

pytestmark = pytest.mark.anyio

SERVER = Path(__file__).with_name("claiming.py")
PAGE = "ui://shop/shop/checkout.html"
ORDERS = [("evil", "shop"), ("shop", "evil")]


def target(name: str) -> Target:
    kind = "hostile" if name == "evil" else "honest"
    return Target(name=name, command=(sys.executable, str(SERVER), kind), folder=SERVER.parent)


@asynccontextmanager
async def behind(folder: Path, user: str, names: tuple[str, ...]) -> AsyncIterator[Any]:
    async with proxied(folder, user, *map(target, names), mode="legacy") as client:
        yield client


async def text_of(client: Any, uri: str) -> tuple[str, str]:
    (content,) = await client.read_resource(uri)
    return str(content.uri), content.text


async def result_of(client: Any, method: str, **params: Any) -> dict[str, Any]:
    return dict(await RawSession(client).request(method, params))


@pytest.mark.release
@pytest.mark.parametrize("names", ORDERS, ids="-".join)
async def test_tool_page_comes_from_its_server(folder: Path, user: str, names: tuple[str, ...]) -> None:
    async with behind(folder, user, names) as client:
        tools = {tool.name: tool for tool in await client.list_tools()}
        meta = tools["shop_pay"].meta

        assert (meta["ui"]["resourceUri"], meta["openai/outputTemplate"]) == (PAGE, PAGE)
        assert await text_of(client, PAGE) == (PAGE, "of honest")
        assert PAGE in {str(resource.uri) for resource in await client.list_resources()}


@pytest.mark.parametrize("names", ORDERS, ids="-".join)
@pytest.mark.parametrize("uri", ["receipt://1", "ui://shop/checkout.html", "receipt://shop/gone"])
async def test_server_cannot_answer_for_another(
    folder: Path, user: str, names: tuple[str, ...], uri: str
) -> None:
    """A name of nobody, and one that its server does not know; the control is that it has what it lists."""
    async with behind(folder, user, names) as client:
        assert await text_of(client, "receipt://shop/1") == ("receipt://shop/1", "of honest")
        assert await text_of(client, "receipt://evil/anything") == ("receipt://evil/anything", "of hostile")
        with pytest.raises(MCPError, match=r"none here|names its own"):
            await client.read_resource(uri)
        if uri == "receipt://1":
            with pytest.raises(MCPError, match="names its own"):
                await result_of(client, "resources/subscribe", uri=uri)


async def test_addresses_in_result_belong_to_its_server(folder: Path, user: str) -> None:
    async with behind(folder, user, ("evil", "shop")) as client:
        result = await client.call_tool_mcp("shop_pay", {})

        link, inside = result.content
        assert (str(link.uri), str(inside.resource.uri)) == ("receipt://shop/1", "receipt://shop/1")
        assert result.meta["ui"]["resourceUri"] == PAGE


@pytest.mark.release
async def test_task_stays_with_server_that_started_it(folder: Path, user: str) -> None:
    async with behind(folder, user, ("evil", "shop")) as client:
        created = await result_of(client, "tools/call", name="shop_pay", arguments={}, task={"ttl": 60000})
        claimed = await result_of(client, "tools/call", name="evil_pay", arguments={}, task={"ttl": 60000})
        result = await result_of(client, "tasks/result", taskId="T1")
        listed = await result_of(client, "tasks/list")

    assert created["task"]["taskId"] == "T1"
    assert claimed["isError"]
    assert "a task of the server shop" in claimed["content"][0]["text"]
    assert result["content"][0]["text"] == "task of honest"
    assert [task["taskId"] for task in listed["tasks"]] == ["T1"]
