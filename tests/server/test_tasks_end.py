"""Memory that a task holds after its end."""

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any, cast

import pytest
from support import becomes

from runner.server.mcp_tasks import EXTENSION, McpTasks
from runner.steps.request import Request
from runner.users.capability_tokens import Tokens
from runner.users.identity import User
from runner.worker.wire import RequestFacts

pytestmark = pytest.mark.anyio

CAPABILITIES: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"extensions": {EXTENSION: {}}}}


class Arguments(dict[str, Any]):
    """Arguments that a weak reference can follow."""


async def test_task_drops_arguments_at_its_end(tmp_path: Path) -> None:
    ends = asyncio.Event()

    async def run(_: Request) -> dict[str, Any]:
        await ends.wait()
        return {"content": []}

    def request(method: str, **params: Any) -> Request:
        facts = RequestFacts(protocol="2026-07-28", transport="http", request_id=1, session_id="s")
        params["_meta"] = CAPABILITIES
        return Request(
            user=User("ann"),
            method=method,
            params=params,
            facts=facts,
            client=cast("Any", None),
            inline_max_bytes=0,
        )

    tasks = McpTasks(run, lambda _: 1, lambda _: 60.0, lambda: Tokens(tmp_path / "tokens.json"))
    arguments = weakref.ref(value := Arguments(text="a"))
    handle = await tasks.begin(request("tools/call", name="tool", arguments=value))
    del value
    gc.collect()
    assert arguments() is not None

    ends.set()

    assert await becomes(lambda: gc.collect() >= 0 and arguments() is None)
    task = await tasks.answer(request("tasks/get", taskId=handle["taskId"]))
    assert (task["status"], task["result"]) == ("completed", {"content": []})
