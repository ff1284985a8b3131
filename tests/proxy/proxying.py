"""Shared by the tests of the proxy: a proxy in this process in front of real servers, and a client of it."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastmcp import Client
from support import settings_in

from runner.identity import User
from runner.proxy.application import make_proxy
from runner.proxy.desk import Desk
from runner.proxy.shell import ways_to
from runner.proxy.targets import Target

REMOTE = Path(__file__).parent / "remote.py"
BARE = Path(__file__).parent / "bare.py"
PAGED = Path(__file__).parent / "paged.py"


def over_stdio(name: str = "bare", server: Path = BARE, **more: Any) -> Target:
    return Target(name=name, command=(sys.executable, str(server)), folder=server.parent, **more)


def over_http(url: str, name: str = "remote") -> Target:
    return Target(name=name, url=url)


@asynccontextmanager
async def desk_for(folder: Path, user: str, *targets: Target, **settings: Any) -> AsyncIterator[Desk]:
    effective = settings_in(folder, user=user, **settings)
    async with Desk.open(effective, ways_to(effective, targets), User(user)) as desk:
        yield desk


@asynccontextmanager
async def proxied(
    folder: Path, user: str, *targets: Target, mode: str = "auto", client: Any = None, **settings: Any
) -> AsyncIterator[Any]:
    async with (
        desk_for(folder, user, *targets, **settings) as desk,
        Client(make_proxy(desk, transport="stdio"), mode=mode, **(client or {})) as it,
    ):
        yield it


async def result(client: Any, tool: str, **arguments: Any) -> Any:
    called = await client.call_tool(tool, arguments)
    value = called.structured_content
    if value is None:
        return json.loads(called.content[0].text)
    return value["result"] if value is not None and set(value) == {"result"} else value
