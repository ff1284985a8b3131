"""A session that its client ends over HTTP is reported once, and only when the server granted it."""

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from runner.protocol.http_sessions import BoundedSessions

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
        endpoint, idle_s=None, user=lambda: "ann", connected=lambda _session: None, session_ended=note
    )
    with TestClient(app) as client:
        answered = client.request(method, "/mcp", headers=headers)

    assert (answered.status_code, ended) == (status, expected)
