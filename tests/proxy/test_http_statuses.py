"""Servers over HTTP that answer with a status: sessions that end, calls that are repeated, errors."""

import itertools
from collections import Counter
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from far import Refused, far_server, plain, tool
from mcp.shared.exceptions import MCPError
from proxying import over_http, proxied

pytestmark = pytest.mark.anyio


class Sessions:
    """A server with sessions, which ends them when it is told to, and counts the calls that it begins."""

    def __init__(self, refusal: int) -> None:
        self.refusal = refusal
        self.known: set[str] = set()
        self.begun: Counter[str] = Counter()
        self._numbers = itertools.count(1)

    def form(self, asked: dict[str, Any], _headers: Message, body: bytes) -> Any:
        if asked["method"] != "initialize":
            return plain(asked, {}, body)
        name = f"session-{next(self._numbers)}"
        self.known.add(name)
        headers, parts = plain(asked, {}, body)
        return {**headers, "mcp-session-id": name}, parts

    def status(self, asked: dict[str, Any], headers: Message) -> int:
        opens = asked["method"] in ("initialize", "server/discover")
        return 200 if opens or headers["mcp-session-id"] in self.known else self.refusal

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "ping":
            return {}
        if method != "tools/call":
            raise Refused("Method not found")
        self.begun[params["name"]] += 1
        if params["name"] == "fails":
            raise Refused("Session not found")
        return {"content": [{"type": "text", "text": str(len(self.known))}]}


@pytest.mark.parametrize(("refusal", "is_repeated"), [(404, True), (400, False)])
async def test_session_that_server_forgot_is_begun_again(
    folder: Path, user: str, refusal: int, is_repeated: bool
) -> None:
    sessions = Sessions(refusal)
    with far_server([tool("run"), tool("fails")], sessions.answer, sessions.form, sessions.status) as url:
        async with proxied(folder, user, over_http(url)) as client:
            before = await client.call_tool_mcp("run", {})
            sessions.known.clear()
            first = await client.call_tool_mcp("run", {})
            second = await client.call_tool_mcp("run", {})

    assert not before.is_error
    assert first.is_error is not is_repeated
    assert not second.is_error
    assert sessions.begun["run"] == (3 if is_repeated else 2)


async def test_error_that_names_a_session_is_no_end_of_it(folder: Path, user: str) -> None:
    sessions = Sessions(404)
    with far_server([tool("run"), tool("fails")], sessions.answer, sessions.form, sessions.status) as url:
        async with proxied(folder, user, over_http(url)) as client:
            await client.call_tool_mcp("run", {})
            before = set(sessions.known)
            with pytest.raises(MCPError, match="Session not found"):
                await client.call_tool_mcp("fails", {})

    assert sessions.known == before
    assert sessions.begun["fails"] == 1
