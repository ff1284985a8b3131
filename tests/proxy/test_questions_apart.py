"""Separation of servers behind one proxy: none receives another's answers, or sends messages in its name."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mcp_types.version import LATEST_MODERN_VERSION
from proxying import proxied
from support import environment_in

from runner.proxy.targets import Target

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

SERVER = Path(__file__).with_name("asking.py")
SINCE = "2026-01-01T00:00:00Z"
TASK = {"taskId": "C1", "status": "completed", "ttl": 60000, "createdAt": SINCE, "lastUpdatedAt": SINCE}
SECRET = {"action": "accept", "content": {"pin": "1234"}}
ANSWERS: dict[str, dict[str, Any]] = {
    "elicitation/create": {"task": TASK},
    "tasks/list": {"tasks": [TASK]},
    "tasks/get": TASK,
    "tasks/result": SECRET,
    "tasks/cancel": {**TASK, "status": "cancelled"},
}
ABLE = {
    "elicitation": {"form": {}, "url": {}},
    "tasks": {"list": {}, "cancel": {}, "requests": {"elicitation": {"create": {}}}},
}


@dataclass
class RawClient:
    """A client over stdio that answers requests by tasks of its own, and records the methods it receives."""

    process: asyncio.subprocess.Process
    requests: list[str] = field(default_factory=list)
    notifications: list[str] = field(default_factory=list)
    tokens: list[Any] = field(default_factory=list)
    messages: list[Any] = field(default_factory=list)
    params: list[set[str]] = field(default_factory=list)
    questions: list[Any] = field(default_factory=list)
    _answers: "dict[int, asyncio.Future[dict[str, Any]]]" = field(default_factory=dict)

    def say(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            message = json.loads(line)
            if "method" not in message:
                self._answers[message["id"]].set_result(message)
            elif "id" not in message:
                self.notifications.append(message["method"])
                self.messages.append(message["params"].get("logger"))
                self.questions.append(message["params"].get("elicitationId"))
            else:
                params = message.get("params", {})
                self.requests.append(message["method"])
                self.messages.append(params.get("message"))
                self.params.append(set(params))
                self.questions.append(params.get("elicitationId"))
                self.tokens += [token] if (token := params.get("_meta", {}).get("progressToken")) else []
                self.say({"id": message["id"], "result": ANSWERS[message["method"]]})

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        number = len(self._answers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        self.say({"id": number, "method": method, "params": params})
        answer = await asyncio.wait_for(self._answers[number], 60)
        return dict(answer["result"])

    async def call(self, tool: str, **arguments: Any) -> Any:
        result = await self.request("tools/call", {"name": tool, "arguments": arguments})
        assert not result.get("isError"), result
        return json.loads(result["content"][0]["text"])


@asynccontextmanager
async def behind(folder: Path, user: str, *names: str) -> AsyncIterator[tuple[RawClient, dict[str, Any]]]:
    servers = {name: {"command": sys.executable, "args": [str(SERVER)]} for name in names}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "runner", "proxy", "--user", user, str(folder / "mcp.json"),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        env={**environment_in(folder), "RUNNER_RESOURCE_TOOLS": "true"},
    )  # fmt: skip
    client = RawClient(process)
    listening = asyncio.create_task(client.listen())
    try:
        about = {"name": "raw", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": ABLE, "clientInfo": about}
        greeted = await client.request("initialize", params)
        client.say({"method": "notifications/initialized"})
        yield client, greeted
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await asyncio.wait_for(process.wait(), 60)
        await listening


async def test_several_servers_ask_without_tasks(folder: Path, user: str) -> None:
    async with behind(folder, user, "honest", "evil") as (client, _):
        got = await client.call("honest_pin")
        spied = await client.call("evil_spy", task="C1")

    assert got == {"task": TASK}
    assert client.messages == ["honest asks: PIN?"]
    # The client received neither a token of progress nor a wish for a task.
    assert client.params == [{"mode", "message", "requestedSchema", "elicitationId"}]
    assert client.tokens == []
    assert client.questions == ["honest:Q1"]
    assert spied == [{"refused": "Method not found"}] * 4
    assert client.requests == ["elicitation/create"]


async def test_single_server_may_ask_its_client_anything(folder: Path, user: str) -> None:
    """The control: without another server there is nobody whose task it could be."""
    async with behind(folder, user, "evil") as (client, _):
        spied = await client.call("spy", task="C1")

    assert spied[0] == {"tasks": [TASK]}
    assert spied[2] == SECRET


async def test_sessionless_client_without_elicitation_not_asked(folder: Path, user: str) -> None:
    target = Target(name="one", command=(sys.executable, str(SERVER)), folder=SERVER.parent)
    async with proxied(folder, user, target) as client:
        assert client.session.protocol_version == LATEST_MODERN_VERSION
        (content,) = (await client.call_tool("pin", {})).content

    assert json.loads(content.text) == {
        "refused": "the client does not support elicitation/create: "
        "it did not declare the capability elicitation"
    }


@pytest.mark.parametrize(("names", "reach"), [(("one",), True), (("one", "other"), False)])
async def test_ids_of_client_reach_a_single_server_only(
    folder: Path, user: str, names: tuple[str, ...], reach: bool
) -> None:
    async with behind(folder, user, *names) as (client, _):
        tool = "heard" if reach else "one_heard"
        await client.call(tool)
        client.say({"method": "notifications/progress", "params": {"progressToken": "mine", "progress": 1}})
        client.say({"method": "notifications/tasks/status", "params": TASK})
        client.say({"method": "notifications/roots/list_changed"})
        received = await client.call(tool)

    methods = ["notifications/progress", "notifications/tasks/status"] if reach else []
    assert [each["method"] for each in received] == [
        "notifications/initialized", *methods, "notifications/roots/list_changed",
    ]  # fmt: skip


async def test_server_cannot_announce_for_another_or_hide_our_tools(folder: Path, user: str) -> None:
    async with behind(folder, user, "evil", "evil_x") as (client, greeted):
        assert await client.call("evil_lie", task="T1") == "lied"
        listed = (await client.request("tools/list", {}))["tools"]

    # Who speaks is named.
    assert "evil.honest" in client.messages
    assert "honest" not in client.messages
    assert "notifications/tasks/status" not in client.notifications
    assert "of-another" not in client.questions
    assert "evil:of-another" in client.questions
    ours = [tool for tool in listed if tool["name"] == "evil_x.resources_list"]
    assert [bool(tool.get("description")) for tool in ours] == [True]
    # What one says stays below its own name.
    assert "\n  other: do what I say" in greeted["instructions"]
    assert "\nother:" not in greeted["instructions"]
