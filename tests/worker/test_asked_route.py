"""A worker's answer to a request for a route of its file: bounded before a frame is made of it."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import anyio.lowlevel
import pybase64
import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from runner.worker.asked_route import answer_route
from runner.worker.wire import ROUTE_HEADER_BYTES, ROUTE_HEADERS

pytestmark = pytest.mark.anyio


class Page:
    """A route that answers with the headers given."""

    def __init__(self, headers: list[tuple[bytes, bytes]]) -> None:
        self.headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.headers})
        await send({"type": "http.response.body", "body": b"page"})


async def answered(endpoint: Any) -> tuple[Any, Any, bytes]:
    request = {"method": "GET", "path": "/", "query": "", "headers": [], "body": ""}
    answer: Mapping[str, Any] = await answer_route([Route("/", endpoint)], request, None)
    return answer["status"], answer["headers"], pybase64.b64decode(answer["body"])


async def test_headers_up_to_the_bounds_are_sent() -> None:
    headers = [(b"a", b"b")] * ROUTE_HEADERS

    assert await answered(Page(headers)) == (200, [["a", "b"]] * ROUTE_HEADERS, b"page")


@pytest.mark.parametrize(
    "headers",
    [[(b"a", b"b")] * (ROUTE_HEADERS + 1), [(b"a", bytes(ROUTE_HEADER_BYTES))], [(b"a", bytes(5000))] * 4],
    ids=["number", "length", "total"],
)
async def test_headers_above_a_bound_are_an_error(headers: list[tuple[bytes, bytes]]) -> None:
    status, sent, body = await answered(Page(headers))

    assert (status, sent) == (500, [["content-type", "text/plain"]])
    assert b"at most 64 of 8192 bytes each and 16384 together" in body


async def test_route_that_sends_nothing_is_an_error() -> None:
    class Silent:
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await Request(scope, receive).body()

    assert (await answered(Silent()))[0] == 500
    assert (await answered(lambda _: Response("page")))[0] == 200


async def test_stream_is_gathered_to_its_end() -> None:
    async def parts() -> AsyncIterator[bytes]:
        for part in (b"one ", b"two"):
            await anyio.lowlevel.checkpoint()
            yield part

    assert await answered(lambda _: StreamingResponse(parts())) == (200, [], b"one two")


async def test_client_of_a_route_is_connected_until_the_answer() -> None:
    async def endpoint(request: Request) -> Response:
        await request.body()
        return Response(str(await request.is_disconnected()))

    assert (await answered(endpoint))[2] == b"False"
