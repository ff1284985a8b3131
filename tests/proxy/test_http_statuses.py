"""Servers over HTTP that answer with a status: sessions that end, calls that are repeated, errors."""

import itertools
import json
from collections import Counter
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from far import Refused, far_server, plain, tool
from mcp.shared.exceptions import MCPError
from proxying import over_http, proxied, unreachable

pytestmark = pytest.mark.anyio


class Sessions:
    """A server with sessions that end on request; it counts the calls that start."""

    def __init__(self, refusal: int) -> None:
        self.refusal = refusal
        self.known: set[str] = set()
        self.started: Counter[str] = Counter()
        self._numbers = itertools.count(1)

    def form(self, request: dict[str, Any], _headers: Message, body: bytes) -> Any:
        if request["method"] != "initialize":
            return plain(request, {}, body)
        name = f"session-{next(self._numbers)}"
        self.known.add(name)
        headers, parts = plain(request, {}, body)
        return {**headers, "mcp-session-id": name}, parts

    def status(self, request: dict[str, Any], headers: Message) -> int:
        opens = request["method"] in ("initialize", "server/discover")
        return 200 if opens or headers["mcp-session-id"] in self.known else self.refusal

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "ping":
            return {}
        if method != "tools/call":
            raise Refused("Method not found")
        self.started[params["name"]] += 1
        if params["name"] == "fails":
            raise Refused("Session not found")
        return {"content": [{"type": "text", "text": str(len(self.known))}]}


@pytest.mark.parametrize(("refusal", "is_repeated"), [(404, True), (400, False)])
async def test_forgotten_session_is_started_again(
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
    assert sessions.started["run"] == (3 if is_repeated else 2)


async def test_error_that_names_a_session_does_not_end_it(folder: Path, user: str) -> None:
    sessions = Sessions(404)
    with far_server([tool("run"), tool("fails")], sessions.answer, sessions.form, sessions.status) as url:
        async with proxied(folder, user, over_http(url)) as client:
            await client.call_tool_mcp("run", {})
            before = set(sessions.known)
            with pytest.raises(MCPError, match="Session not found"):
                await client.call_tool_mcp("fails", {})

    assert sessions.known == before
    assert sessions.started["fails"] == 1


def refusing(only: str, code: int, retry_after: str = "") -> tuple[Any, Any]:
    """Return status and form of a server that answers a method with a status."""

    def status(request: dict[str, Any], _headers: Message) -> int:
        return code if only in ("", request["method"]) else 200

    def form(request: dict[str, Any], headers: Message, body: bytes) -> Any:
        made, parts = plain(request, headers, body)
        return ({**made, "retry-after": retry_after} if retry_after else made), parts

    return status, form


def fine(method: str, _params: dict[str, Any]) -> dict[str, Any]:
    if method != "tools/call":
        raise Refused("Method not found")
    return {"content": []}


@pytest.mark.parametrize(
    ("status", "retry_after", "code", "words", "seconds"),
    [
        (401, "", "E_TOOL", "`headers` of its entry", None),
        (403, "", "E_TOOL", "`headers` of its entry", None),
        (404, "", "E_TOOL", "HTTP status 404", None),
        (429, "7", "E_BUSY", "try again in 7 seconds", 7),
        (429, "99999999999", "E_BUSY", "HTTP status 429", None),
        (503, "Fri, 31 Dec 9999 23:59:59 GMT", "E_BUSY", "try again in 86400 seconds", 86400),
        (503, "Sun, 06 Nov 1994 08:49:37 GMT", "E_BUSY", "try again in 0 seconds", 0),
        (503, "soon", "E_BUSY", "HTTP status 503", None),
        (500, "7", "E_CRASHED", "HTTP status 500", None),
        (599, "", "E_CRASHED", "HTTP status 599", None),
    ],
)
async def test_status_of_a_call_reaches_the_message(
    folder: Path, user: str, status: int, retry_after: str, code: str, words: str, seconds: int | None
) -> None:
    refuses, form = refusing("tools/call", status, retry_after)
    with far_server([tool("run")], fine, form, refuses) as url:
        async with proxied(folder, user, over_http(url)) as client:
            answer = await client.call_tool_mcp("run", {})

    value = json.loads(answer.content[0].text)
    facts = value["meta_data"]
    assert (facts["error_code"], facts["retryable"]) == (code, code in ("E_BUSY", "E_CRASHED"))
    assert words in value["results"]["error"]
    assert "did not answer" not in value["results"]["error"]
    assert facts["details"].get("retry_after_seconds") == seconds


@pytest.mark.parametrize(("code", "words"), [(401, "`headers` of its entry"), (429, "in 7 seconds")])
async def test_status_while_connecting_reaches_the_message(
    folder: Path, user: str, code: int, words: str
) -> None:
    refuses, form = refusing("", code, "7")
    with far_server([tool("run")], fine, form, refuses) as url:
        assert words in await unreachable(folder, user, over_http(url))


async def test_list_missing_by_status_is_empty(folder: Path, user: str) -> None:
    refuses, form = refusing("prompts/list", 404)
    with far_server([tool("run")], fine, form, refuses) as url:
        async with proxied(folder, user, over_http(url)) as client:
            tools, prompts = await client.list_tools(), await client.list_prompts()

    assert (tools[0].name, prompts) == ("run", [])
