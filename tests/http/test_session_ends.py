"""A session that its client ends over HTTP is told of once, and only when the server granted it."""

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from runner.http.session_ends import SessionEnds

ENDS = {"mcp-session-id": "s1"}


@pytest.mark.parametrize(
    ("method", "path", "status", "headers", "expected"),
    [
        ("DELETE", "/mcp", 200, ENDS, ["s1"]),
        ("DELETE", "/mcp", 204, ENDS, ["s1"]),
        ("DELETE", "/mcp", 404, ENDS, []),
        ("DELETE", "/mcp", 401, ENDS, []),
        ("DELETE", "/mcp", 200, {}, []),
        ("DELETE", "/api/files/art_0", 204, ENDS, []),
        ("DELETE", "/api/session", 204, ENDS, []),
        ("POST", "/mcp", 200, ENDS, []),
        ("GET", "/mcp", 200, ENDS, []),
    ],
)
def test_only_a_granted_delete_of_a_session_ends_it(
    method: str, path: str, status: int, headers: dict[str, str], expected: list[str]
) -> None:
    ended: list[str] = []

    async def note(session: str) -> None:
        ended.append(session)

    async def answer(request: Request) -> Response:
        return Response(status_code=status)

    app = Starlette(routes=[Route(path, answer, methods=["GET", "POST", "DELETE"])])
    app.add_middleware(SessionEnds, ended=note)
    with TestClient(app) as client:
        answered = client.request(method, path, headers=headers)

    assert (answered.status_code, ended) == (status, expected)
