"""Ends of sessions over HTTP: by the client, reported once if the server granted it; by us, of idle ones."""

import math
import time
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from runner.errors import CallError
from runner.protocol.endpoint import MOST_OPENING_BYTES, MOST_SESSIONS, BoundedSessions

ENDS = {"mcp-session-id": "s1"}


@pytest.mark.parametrize(
    ("method", "status", "headers", "expected"),
    [
        ("DELETE", 200, ENDS, ["s1"]),
        ("DELETE", 204, ENDS, ["s1"]),
        ("DELETE", 404, ENDS, []),
        ("DELETE", 401, ENDS, []),
        ("DELETE", 200, {}, []),
        ("POST", 200, ENDS, []),
        ("GET", 200, ENDS, []),
    ],
)
def test_only_a_granted_delete_of_a_session_ends_it(
    method: str, status: int, headers: dict[str, str], expected: list[str]
) -> None:
    ended: list[str] = []

    async def note(session: str) -> None:
        ended.append(session)

    async def answer(request: Request) -> Response:
        return Response(status_code=status)

    endpoint = Starlette(routes=[Route("/mcp", answer, methods=["GET", "POST", "DELETE"])])
    app = BoundedSessions(
        endpoint, idle_s=math.inf, user=lambda: "ann", connected=lambda _session: None, session_ended=note
    )
    with TestClient(app) as client:
        answered = client.request(method, "/mcp", headers=headers)

    assert (answered.status_code, ended) == (status, expected)


@pytest.mark.anyio
@pytest.mark.parametrize("refused", [0, 9])
async def test_opening_request_counts_once_until_it_is_answered(refused: int) -> None:
    answered: list[int] = []
    ended: list[bytes] = []

    async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "DELETE":
            ended.append(dict(scope["headers"])[b"mcp-session-id"])
            return
        number = len(answered)
        start: Message = {"type": "http.response.start", "status": 400 if number < refused else 200}
        if number >= refused:
            start["headers"] = [(b"mcp-session-id", b"s%d" % number)]
        await send(start)
        answered.append(number)
        # The response is with its client; the task goes on.
        await anyio.sleep_forever()

    async def nothing() -> Message:
        return {"type": "http.request"}

    async def discard(message: Message) -> None:
        del message

    app = BoundedSessions(
        endpoint, idle_s=math.inf, user=lambda: "ann", connected=lambda _session: None, session_ended=None
    )
    scope = {"type": "http", "method": "POST", "headers": []}
    async with anyio.create_task_group() as group:
        for count in range(1, refused + MOST_SESSIONS + 1):
            group.start_soon(app, scope, nothing, discard)
            with anyio.fail_after(60):
                while len(answered) < count:
                    await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()

    assert ended == []


@pytest.mark.anyio
async def test_long_request_opens_no_session() -> None:
    opened = list[int]()

    async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
        opened.append(len((await receive())["body"]))

    async def discard(message: Message) -> None:
        del message

    async def open_with(count: int) -> None:
        async def body() -> Message:
            return {"type": "http.request", "body": bytes(count)}

        await app({"type": "http", "method": "POST", "headers": []}, body, discard)

    app = BoundedSessions(
        endpoint, idle_s=math.inf, user=lambda: "ann", connected=lambda _session: None, session_ended=None
    )
    await open_with(MOST_OPENING_BYTES)
    with pytest.raises(CallError, match="opens a session"):
        await open_with(MOST_OPENING_BYTES + 1)

    assert opened == [MOST_OPENING_BYTES]


@pytest.mark.parametrize(
    ("calls", "called_at", "idle_s", "expected"),
    [
        ({}, 0.0, 0.0, ["s1"]),
        ({}, time.monotonic() + 1000, 0.0, []),
        ({1: "call"}, 0.0, 0.0, []),
        ({}, 0.0, math.inf, []),
    ],
    ids=["idle", "called lately", "in a call", "never ended"],
)
def test_idle_session_is_ended_as_another_begins(
    calls: dict[int, str], called_at: float, idle_s: float, expected: list[str]
) -> None:
    opened, ended, closed = list[str](), list[str](), list[bool]()

    async def answer(request: Request) -> Response:
        if request.method == "DELETE":
            ended.append(request.headers["mcp-session-id"])
            return Response()
        opened.append(f"s{len(opened) + 1}")
        return Response(headers={"mcp-session-id": opened[-1]})

    live: Any = SimpleNamespace(in_flight=calls, called_at=called_at, close=lambda: closed.append(True))
    app = BoundedSessions(
        Starlette(routes=[Route("/mcp", answer, methods=["POST", "DELETE"])]),
        idle_s=idle_s,
        user=lambda: "ann",
        connected=lambda session: live if session == "s1" else None,
        session_ended=None,
    )
    with TestClient(app) as client:
        client.post("/mcp")
        client.post("/mcp")

    assert opened == ["s1", "s2"]
    assert ended == expected
    assert len(closed) == len(expected)
