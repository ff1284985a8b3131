"""A worker's side of the HTTP routes that a tool file adds: one request, answered by the author's code."""

import asyncio
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import pybase64
from starlette.routing import BaseRoute, Route, Router
from starlette.types import Message

from runner.worker.wire import ROUTE_HEADER_BYTES, ROUTE_HEADERS, ROUTE_HEADERS_BYTES

__all__ = ["answer_route", "described_routes"]

_TEXT = [["content-type", "text/plain"]]


def described_routes(routes: Sequence[BaseRoute]) -> list[dict[str, object]]:
    """Describe routes for the host: path and methods."""
    return [
        {"path": route.path, "methods": sorted(route.methods or ())}
        for route in routes
        if isinstance(route, Route)
    ]


async def answer_route(
    routes: Sequence[BaseRoute], request: Mapping[str, Any], lifespan_state: Any
) -> dict[str, object]:
    """Answer one request as a whole; a streamed response is collected.

    Args:
        routes: The author's routes.
        request: Method, path, query, headers and body of the request.
        lifespan_state: State from the server's lifespan.
    """
    sent: list[Message] = []
    body: list[Message] = [
        {"type": "http.request", "body": pybase64.b64decode(request["body"]), "more_body": False}
    ]

    async def receive() -> Message:
        if not body:
            # Never disconnects: a stream would end then, and this client waits for the whole answer.
            await asyncio.get_running_loop().create_future()
        return body.pop()

    async def send(message: Message) -> None:
        sent.append(message)

    path = str(request["path"])
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": str(request["method"]),
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": str(request["query"]).encode("latin-1", "replace"),
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request["headers"]],
        "server": ("localhost", 80),
        "client": None,
        "state": dict(lifespan_state) if isinstance(lifespan_state, Mapping) else {},
    }
    try:
        await Router(routes=list(routes))(scope, receive, send)
    except Exception:  # noqa: BLE001 - the author's code; a web server answers so, and logs where it was
        traceback.print_exc()
        return _failed("Internal Server Error")
    start = next((message for message in sent if message["type"] == "http.response.start"), None)
    if start is None:
        return _failed("Internal Server Error")
    headers = list(start.get("headers", ()))
    lengths = [len(name) + len(value) for name, value in headers]
    longest, total = max(lengths, default=0), sum(lengths)
    # Before they are put into a frame, which the host would refuse as well.
    if len(lengths) > ROUTE_HEADERS or longest > ROUTE_HEADER_BYTES or total > ROUTE_HEADERS_BYTES:
        return _failed(
            f"the route answered with {len(lengths)} headers of {total} bytes; at most {ROUTE_HEADERS} "
            f"of {ROUTE_HEADER_BYTES} bytes each and {ROUTE_HEADERS_BYTES} together are sent"
        )
    whole = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
    return {
        "status": start["status"],
        "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in headers],
        "body": pybase64.b64encode(whole).decode(),
    }


def _failed(sentence: str) -> dict[str, object]:
    return {"status": 500, "headers": _TEXT, "body": pybase64.b64encode(sentence.encode()).decode()}
