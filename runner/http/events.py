"""`GET /events`: changes of a user's files and calls, as server-sent events.

The stream is for one user's interfaces. It covers all sessions of the user, or with `?session=` one.
Events describe files but never contain them. Nothing is replayed: a page that reconnects requests the
list of files again.

Source: HTML Standard, "Server-sent events"; requirements S0-68, S4-80; rule H5 of the conformance cases.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from runner.http.context import Site
from runner.http.identify import identify
from runner.http.responses import SAFE_HEADERS, Refusal
from runner.users.events import LISTENERS_PER_USER, MISSED
from runner.users.identity import User

__all__ = ["routes"]

_BEAT_S = 15.0
_TYPE = re.compile(r"\w{1,64}", re.ASCII)


def routes(site: Site) -> list[Route]:
    """Return the route of the event stream."""

    async def events(request: Request) -> StreamingResponse:
        user = await identify(site, request)
        if request.method == "HEAD":
            # Its stream would be sent to nobody, without an end.
            raise Refusal(405, "the stream of events is read by GET", {"allow": "GET"})
        if site.events.listeners(user=user.segment) >= LISTENERS_PER_USER:
            raise Refusal(429, f"{LISTENERS_PER_USER} streams of yours are open; close one first")
        frames = _frames(site, user, request.query_params.get("session"))
        return StreamingResponse(frames, media_type="text/event-stream", headers=SAFE_HEADERS)

    return [Route("/events", events, methods=["GET"])]


async def _frames(site: Site, user: User, session: str | None) -> AsyncIterator[bytes]:
    with site.events.subscribe(user=user.segment, session=session) as subscription:
        # Sent at once: from then on, the client knows that it misses no event.
        yield b"retry: 2000\n: listening\n\n"
        missed = 0
        while True:
            event, beats = None, False
            try:
                async with asyncio.timeout(_BEAT_S):
                    event = await anext(subscription, None)
            except TimeoutError:
                beats = True
            # Reported without an event, too: after a host was cut off from others, none may follow.
            lost = subscription.missed - missed
            missed += lost
            if lost:
                yield _frame({"type": MISSED, "count": lost})
            if beats:
                yield b":\n\n"
            elif event is None:
                return
            else:
                yield _frame(event)


def _frame(event: Mapping[str, Any]) -> bytes:
    kind = str(event.get("type"))
    name = kind if _TYPE.fullmatch(kind) else "message"
    return f"event: {name}\ndata: {json.dumps(event)}\n\n".encode()
