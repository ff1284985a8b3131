"""Requests that code sends for tools: what the server gets of each, and which are refused."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import pytest
from mcp import MCPError

from runner.contract.widget_dialects import widget_rights
from runner.errors import CallError
from runner.server.code_mode import MOST_CALLS, CodeMode, ToolsOfCode
from runner.steps.authorization import authorize_widget
from runner.steps.listener import ClientRefusal

pytestmark = pytest.mark.anyio

META = {
    "progressToken": 7,
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
    "traceparent": "00-1",
    "fastmcp": {"version": "1"},
}


@dataclass(frozen=True)
class Asked:
    """A request as the SDK hands it on."""

    method: str = "tools/call"
    params: Mapping[str, Any] | None = None
    request_id: int | None = 1


class Server:
    """A front that keeps what it gets."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.got: list[Any] = []

    async def __call__(self, ctx: Any, call_next: Any) -> Any:
        del call_next
        self.got.append(ctx)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def tools_of(server: Server) -> ToolsOfCode:
    return ToolsOfCode(server, cast("Any", Asked(params={"name": "execute", "_meta": META})))


async def test_call_of_code_is_request_of_same_client() -> None:
    server = Server({"content": []})

    answer = await tools_of(server)("tools/call", {"name": "add", "arguments": {"a": 1}, "task": {}})

    assert answer == {"content": []}
    assert server.got[0].params == {
        "name": "add",
        "arguments": {"a": 1},
        # Nothing that would make it a task or a question, and no progress under the token of the run.
        "_meta": {
            "io.modelcontextprotocol/clientCapabilities": {},
            "traceparent": "00-1",
            "toolcell/code": True,
        },
    }


async def test_list_of_code_has_all_pages() -> None:
    first, second = {"name": "first"}, {"name": "second"}
    server = Server({"tools": [first], "nextCursor": "a"}, {"tools": [second]})

    assert await tools_of(server)("tools/list", {}) == {"tools": [first, second]}
    assert server.got[1].params["cursor"] == "a"


@pytest.mark.parametrize(
    ("meta", "is_found"),
    [
        ({}, True),
        ({"ui": {"visibility": ["app", "model"]}}, True),
        ({"openai/visibility": "public"}, True),
        ({"ui": {"visibility": ["app"]}}, False),
        ({"ui": {"visibility": []}}, False),
        ({"openai/visibility": "private"}, False),
    ],
)
async def test_tool_that_is_not_for_models_hidden_from_code(meta: dict[str, Any], is_found: bool) -> None:
    tool = {"name": "buy", "_meta": meta}
    by_code = {"_meta": {"toolcell/code": True}}

    listed = await tools_of(Server({"tools": [tool]}))("tools/list", {})
    authorize_widget("buy", widget_rights(tool), {"_meta": {}})
    with contextlib.nullcontext() if is_found else pytest.raises(CallError, match="not be called by code"):
        authorize_widget("buy", widget_rights(tool), by_code)

    assert listed == {"tools": [tool] if is_found else []}


def test_tool_that_no_server_lists_not_called_by_code() -> None:
    authorize_widget("BUY", None, {"_meta": {}})
    with pytest.raises(CallError, match="not be called by code"):
        authorize_widget("BUY", None, {"_meta": {"toolcell/code": True}})


async def test_calls_of_code_above_bound_refused() -> None:
    server = Server({"content": []})
    tools = tools_of(server)
    for _ in range(MOST_CALLS - 1):
        await tools("tools/call", {"name": "add"})
    await tools("tools/list", {})

    for method in ("tools/call", "tools/list"):
        with pytest.raises(ClientRefusal, match=f"has called {MOST_CALLS} tools"):
            await tools(method, {"name": "add"})

    assert len(server.got) == MOST_CALLS


async def test_requests_of_code_answered_one_at_a_time() -> None:
    running: list[int] = []
    go_on = asyncio.Event()

    async def slow(ctx: Any, call_next: Any) -> Any:
        del ctx, call_next
        running.append(1)
        await go_on.wait()
        return {"content": [], "tools": []}

    tools = ToolsOfCode(slow, cast("Any", Asked(params={})))
    requests = [asyncio.create_task(tools(method, {})) for method in ("tools/call", "tools/list")]
    for _ in range(20):
        await asyncio.sleep(0)
    first = len(running)
    go_on.set()
    await asyncio.gather(*requests)

    assert (first, len(running)) == (1, 2)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"resultType": "input_required"}, "asks its client"),
        (MCPError(code=-32602, message="Unknown tool: add"), "Unknown tool: add"),
        (KeyError("add"), "The server failed"),
    ],
)
async def test_call_of_code_that_fails_refused(answer: Any, words: str) -> None:
    with pytest.raises(ClientRefusal, match=words):
        await tools_of(Server(answer))("tools/call", {"name": "add"})


@pytest.mark.parametrize(
    ("request_", "answered_by"),
    [
        (Asked("tools/list"), "code"),
        (Asked(params={"name": "search"}), "code"),
        (Asked(params={"name": "add"}), "server"),
        (Asked("resources/list"), "server"),
        (Asked("tools/list", request_id=None), "server"),
    ],
)
async def test_request_for_tools_answered_by_code_mode(request_: Asked, answered_by: str) -> None:
    front = CodeMode(Server("server"), Server("code"), frozenset({"search"}))

    answer: Any = await front(cast("Any", request_), cast("Any", None))

    assert answer == answered_by
