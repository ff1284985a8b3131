"""Users behind one `runner proxy`: their homes while calls use them, and tasks that servers make of calls."""

import asyncio
import json
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from contracting import VERSIONS, Front, client_of, front_of
from far import Refused, far_server, tool
from mcp.shared.exceptions import MCPError
from proxying import RawSession, over_http, over_stdio, proxied, upstreams_for
from support import becomes, settings_in

from runner.administration import Administration
from runner.errors import UsageError
from runner.files.my_files import open_library
from runner.proxy.remote import Announced
from runner.store.protocol import Origin
from runner.toolset.catalog import ToolSpec
from runner.users.identity import User

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.kernel,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

HOMED = Path(__file__).parent / "homed.py"
ANN, BOB = (f"token-of-{name}-{uuid.uuid4().hex}" for name in ("ann", "bob"))


@pytest.mark.release
@pytest.mark.parametrize(("tool", "arguments"), [("wait", {}), ("wait_for", {"username": "mallory"})])
async def test_user_removal_refused_during_proxied_call(
    folder: Path, user: str, tool: str, arguments: dict[str, str]
) -> None:
    """One of the tools is under the contract, the other is only guarded."""
    administration = Administration(settings=settings_in(folder))
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    another = Administration(settings=settings_in(elsewhere))
    await open_library(settings_in(folder)).of(user).put(b"a,b", name="rows.csv", origin=Origin.UPLOADED)
    home = Path("/tmp", user)
    async with proxied(folder, user, over_stdio("homed", HOMED)) as client:
        call = asyncio.create_task(client.call_tool_mcp(tool, arguments))
        assert await becomes((home / "begun").exists)

        running = (await administration.account(user)).calls_running
        with pytest.raises(UsageError, match=r"a call of .* is under way"):
            await administration.delete(user)
        remaining = [(await administration.account(user)).files, (home / "begun").exists()]
        # An installation with another state folder does not know that a call is in flight.
        unseen = await another.delete(user)
        held = (home / "begun").exists()
        (home / "go").touch()
        answered = await call
        idle = (await administration.account(user)).calls_running
        removed = await administration.delete(user)

    assert running
    assert remaining == [1, True]
    assert held
    assert any("the home, which a server holds" in left for left in unseen["left"])
    assert not answered.is_error, answered
    # The control: with the call its lock is gone, and with the server its hold on the home.
    assert not idle
    assert removed["files"] == 1
    assert not home.exists()


async def test_home_kept_for_call_whose_server_has_ended(folder: Path, user: str) -> None:
    home = Path("/tmp", user)
    async with upstreams_for(folder, user, over_stdio("homed", HOMED)) as upstreams:
        upstream = upstreams._of_user(User(user), "homed", Announced())
        await upstream.spec("copy")
        await upstream.move_home()
        await upstream.connected()
        assert home.is_dir()

        async with upstream.held_home() as lease:
            await upstream.drop()
            held = home.is_dir()

        assert lease is not None
        assert held
        # The control: nothing but that held it.
        assert not home.exists()


async def test_list_change_of_one_user_restarts_no_other_process(folder: Path, user: str) -> None:
    """A process is its user's own, and may list a tool with a home at any moment."""
    homed = ToolSpec.of(
        {
            "name": "late",
            "inputSchema": {
                "type": "object",
                "properties": {"username": {"type": "string"}},
                "required": ["username"],
            },
        },
        identity="username",
    )
    async with upstreams_for(folder, user, over_stdio()) as upstreams:
        way, other = upstreams.ways["bare"], User(f"{user}-2")
        upstream = upstreams._of_user(User(user), "bare", Announced())
        await upstream.connected()

        way.learn(homed, other.name, by_url=False)
        await upstream.move_home()
        went_on = upstream.is_connected
        # The control: a list of the user's own process does.
        way.learn(homed, user, by_url=False)
        await upstream.move_home()

        assert went_on
        assert not upstream.is_connected


@dataclass
class Engine:
    """A far server that makes a task of each call, and knows nothing of users.

    Attributes:
        tasks: The tasks of all, by id: the tool.
        requests: Pairs of a method and its task.
        finish: Set when results may be returned.
    """

    tasks: dict[str, str] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    finish: threading.Event = field(default_factory=threading.Event)

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "tools/call":
            task = f"task-{len(self.tasks)}"
            self.tasks[task] = params["name"]
            return {"task": about(task)}
        if method == "tasks/list":
            return {"tasks": [about(task) for task in self.tasks]}
        task = params["taskId"]
        if task not in self.tasks:
            raise Refused("no such task")
        self.requests.append((method, task))
        if method == "tasks/result":
            assert self.finish.wait(600)
            return {"content": [{"type": "text", "text": f"the secret of {task}"}]}
        return about(task)


def about(task: str) -> dict[str, Any]:
    at = "2026-01-01T00:00:00Z"
    return {"taskId": task, "status": "working", "ttl": 60_000, "createdAt": at, "lastUpdatedAt": at}


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def far(engine: Engine) -> Iterator[str]:
    able: dict[str, Any] = {"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}
    with far_server([tool("plain"), tool("ours", "username")], engine.answer, **able) as url:
        yield url


@asynccontextmanager
async def speaking(front: Front, version: str, token: str) -> AsyncIterator[RawSession]:
    async with client_of(front, version, auth=token) as client:
        yield RawSession(client)


@pytest.mark.release
@VERSIONS
async def test_remote_tasks_of_one_user_unreachable_for_another(
    engine: Engine, far: str, version: str
) -> None:
    engine.finish.set()
    users = {ANN: "ann", BOB: "bob"}
    with front_of(far, tokens=users) as front:
        async with speaking(front, version, ANN) as ann, speaking(front, version, BOB) as bob:
            for name in ("plain", "ours"):
                call = {"name": name, "arguments": {}, "task": {"ttl": 60_000}}
                task = (await ann.request("tools/call", call))["task"]["taskId"]
                own = {
                    method: await ann.request(method, {"taskId": task})
                    for method in ("tasks/get", "tasks/result")
                }
                listed = (await ann.request("tasks/list"))["tasks"]
                engine.requests.clear()
                for method in ("tasks/get", "tasks/result", "tasks/cancel", "tasks/update"):
                    with pytest.raises(MCPError, match="there is no task"):
                        await bob.request(method, {"taskId": task})
                theirs = (await bob.request("tasks/list"))["tasks"]
                received = list(engine.requests)
                cancelled = await ann.request("tasks/cancel", {"taskId": task})

                # Control: the user who started it may do all of that.
                assert f"the secret of {task}" in json.dumps(own)
                assert task in [each["taskId"] for each in listed]
                assert cancelled["taskId"] == task
                assert theirs == []
                assert received == []


@pytest.mark.parametrize("name", ["plain", "ours"])
async def test_user_removal_refused_during_task_result_fetch(
    engine: Engine, far: str, folder: Path, user: str, name: str
) -> None:
    administration = Administration(settings=settings_in(folder))
    await open_library(settings_in(folder)).of(user).put(b"a,b", name="rows.csv", origin=Origin.UPLOADED)
    async with proxied(folder, user, over_http(far), mode="legacy") as client:
        session = RawSession(client)
        call = {"name": name, "arguments": {}, "task": {"ttl": 60_000}}
        task = (await session.request("tools/call", call))["task"]["taskId"]
        running = (await administration.account(user)).calls_running
        fetching = asyncio.create_task(session.request("tasks/result", {"taskId": task}))
        assert await becomes(lambda: bool(engine.requests))

        with pytest.raises(UsageError, match=r"a call of .* is under way"):
            await administration.delete(user)
        engine.finish.set()
        fetched = await fetching

        # The control: nobody fetches it, before and after.
        assert not running
        assert "the secret of" in json.dumps(fetched)
        assert (await administration.delete(user))["files"] == 1
