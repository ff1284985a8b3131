"""`POST /play/chat`: one turn of a chat, relayed to the endpoint that the operator configured.

The page says what the model is to read, and calls the tools that it asks for. The host adds the key, and
tells the answer as a stream of events, in one form for all endpoints. Where a request goes is the operator's
to say alone: no redirect is followed, and neither proxies nor passwords of the environment are used.

Source: `docs/decisions/0047-a-model-in-the-loop.md`.
"""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from runner.http.context import Site
from runner.http.identify import of_page
from runner.http.responses import SAFE_HEADERS, Refusal
from runner.playground.event_stream import EventStream
from runner.playground.json_body import object_of
from runner.playground.model_endpoint import Endpoint, Unspoken
from runner.playground.model_endpoint import ModelRequest as Asked
from runner.playground.model_turn import Event, Turn, turn_of
from runner.users.identity import User

__all__ = ["ModelRelay"]

log = logging.getLogger(__name__)

MOST_REQUEST = 8 * 1024 * 1024
"""Longest conversation that a page sends, in bytes."""

MOST_ANSWER = 4 * 1024 * 1024
"""Longest answer of an endpoint, in bytes of its stream."""

MOST_OF_ONE = 2
"""Turns of one user at the same time."""

_MOST_IN_ALL = 16
_CONNECT_S = 10.0
_TOTAL_S = 900.0
_MOST_ERROR = 64 * 1024
_BEAT_S = 10.0
_MOST_TOLD = 300

Tell = Callable[[Event], Awaitable[None]]


class _Failed(Exception):
    """The endpoint gave no answer, or none that can be used; the sentence is for people."""


@dataclass(slots=True)
class _Facts:
    """What the log says of a turn: nothing of what was said in it."""

    end: str = "broken off"
    counted: dict[str, int] = field(default_factory=dict)


class ModelRelay:
    """The way of pages to the models of one endpoint.

    Args:
        site: Whose pages they are.
        endpoint: The endpoint.
    """

    def __init__(self, site: Site, endpoint: Endpoint) -> None:
        self._site = site
        self._endpoint = endpoint
        self._under_way: Counter[str] = Counter()

    def routes(self) -> list[Route]:
        """Return the route."""
        return [Route("/play/chat", self._turn, methods=["POST"])]

    def facts(self) -> Mapping[str, Any]:
        """Return what a page shows of the endpoint: neither its key nor its whole address."""
        endpoint = self._endpoint
        return {
            "host": endpoint.host,
            "api": endpoint.api,
            "models": list(endpoint.models),
            "images": endpoint.images,
        }

    async def _turn(self, request: Request) -> Response:
        user = await of_page(self._site, request)
        said = await object_of(request, most=MOST_REQUEST)
        turn = turn_of(said, models=self._endpoint.models, images=self._endpoint.images)
        return _Answering(self, user, turn)

    @contextmanager
    def place(self, user: User) -> Iterator[None]:
        """Hold one of the places for turns.

        Raises:
            Refusal: 429; there is none.
        """
        if self._under_way[user.name] >= MOST_OF_ONE:
            raise Refusal(429, f"{MOST_OF_ONE} turns of yours are under way; wait for one, or cancel one")
        if self._under_way.total() >= _MOST_IN_ALL:
            raise Refusal(429, f"{_MOST_IN_ALL} turns are under way on this server; try again in a moment")
        self._under_way[user.name] += 1
        try:
            yield
        finally:
            self._under_way[user.name] -= 1
            if not self._under_way[user.name]:
                del self._under_way[user.name]

    async def carry_out(self, user: User, turn: Turn, tell: Tell) -> None:
        """Have a turn answered, and tell what comes of it; a fault is told as the last event."""
        began = time.monotonic()
        facts = _Facts()
        try:
            async with asyncio.timeout(_TOTAL_S):
                await self._relayed(turn, tell, facts)
        except TimeoutError:
            facts.end = "too long"
            await tell(
                {"type": "error", "error": f"the answer took more than {_TOTAL_S:.0f} s and was ended"}
            )
        except _Failed as error:
            facts.end = "failed"
            await tell({"type": "error", "error": str(error)})
        finally:
            took_ms = round((time.monotonic() - began) * 1000)
            noted = {"user": user.name, "model": turn.model, "ended": facts.end, "took_ms": took_ms}
            log.info("turn of a model", extra={**noted, **facts.counted})

    async def _relayed(self, turn: Turn, tell: Tell, facts: _Facts) -> None:
        # Read off the loop: a file may lie where reading it takes a while.
        endpoint = self._endpoint = await asyncio.to_thread(self._endpoint.renewed)
        asked = endpoint.request(turn)
        if asked.names.changed():
            await tell({"type": "names", "names": asked.names.changed()})
        silence_s = endpoint.silence_s
        limits = httpx2.Timeout(silence_s, connect=_CONNECT_S)
        try:
            content = json.dumps(asked.body, ensure_ascii=False, default=dict).encode("utf-8", "replace")
            client = httpx2.AsyncClient(follow_redirects=False, trust_env=False, timeout=limits)
            async with (
                client,
                client.stream("POST", asked.url, headers=dict(asked.headers), content=content) as response,
            ):
                await self._checked(response, endpoint)
                await self._read(response, asked, _Telling(endpoint, tell, facts))
        except RecursionError:
            raise _Failed("what was sent is nested too deeply to be given to a model") from None
        except httpx2.ConnectTimeout:
            raise _Failed(
                f"the endpoint cannot be reached: no connection within {_CONNECT_S:.0f} s"
            ) from None
        except httpx2.TimeoutException:
            raise _Failed(
                f"the endpoint was silent for {silence_s:g} s (playground_model_timeout_s); try again, "
                "or ask less"
            ) from None
        except httpx2.ConnectError as error:
            raise _Failed(f"the endpoint cannot be reached: {endpoint.told(str(error))}") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            told = endpoint.told(str(error)) or type(error).__name__
            raise _Failed(f"the connection to the endpoint broke off: {told}") from None

    async def _checked(self, response: httpx2.Response, endpoint: Endpoint) -> None:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.status_code != 200:
            said = bytearray()
            async for piece in response.aiter_raw():
                said += piece
                if len(said) > _MOST_ERROR:
                    break
            raise _Failed(endpoint.why(response.status_code, said.decode("utf-8", "replace")))
        if kind != "text/event-stream" or response.headers.get("content-encoding", "identity") != "identity":
            raise _Failed(
                f"the endpoint answered with no stream of events, as {endpoint.api} does; look at "
                "playground_model_url and playground_model_api"
            )

    async def _read(self, response: httpx2.Response, asked: Asked, telling: "_Telling") -> None:
        stream, read = EventStream(), 0
        async for piece in response.aiter_raw():
            read += len(piece)
            if read > MOST_ANSWER:
                raise _Failed(f"the answer has more than {MOST_ANSWER} bytes and was ended")
            for data in stream.take(piece):
                await self._say(asked, data, telling)
            if telling.over:
                return
        for data in stream.end():
            await self._say(asked, data, telling)
        await telling.all(asked.answer.end())
        if not telling.over:
            raise _Failed("the endpoint broke its answer off")

    async def _say(self, asked: Asked, data: str, telling: "_Telling") -> None:
        try:
            events = list(asked.answer.read(data))
        except ValueError:
            raise _Failed(
                f"the endpoint says something that is not of the API {self._endpoint.api}; look at "
                "playground_model_api"
            ) from None
        await telling.all(iter(events))


class _Telling:
    """Tells events of an answer, without the key, and notes what the log says."""

    def __init__(self, endpoint: Endpoint, tell: Tell, facts: _Facts) -> None:
        self._endpoint = endpoint
        self._tell = tell
        self._facts = facts
        self._texts: dict[str, Unspoken] = {}
        self.over = False

    async def all(self, events: Iterator[Event]) -> None:
        """Tell events, until one is the last."""
        for event in events:
            if self.over:
                return
            await self._one(event)

    async def _one(self, event: Event) -> None:
        kind = event["type"]
        if kind in ("text", "thinking"):
            said = self._texts.setdefault(kind, self._endpoint.unspoken()).take(event["text"])
            await self._text(kind, said)
            return
        if kind == "usage":
            self._facts.counted = {f"{name}_tokens": n for name, n in event.items() if name != "type"}
        if kind in ("end", "error"):
            self.over = True
            self._facts.end = event.get("stop", "failed")
            for held, text in self._texts.items():
                await self._text(held, text.rest())
        if kind == "error":
            told = self._endpoint.told(event["error"])[:_MOST_TOLD] or "without saying why"
            event = {"type": "error", "error": f"the endpoint ended its answer: {told}"}
        await self._tell(self._endpoint.masked(event))

    async def _text(self, kind: str, text: str) -> None:
        if text:
            await self._tell({"type": kind, "text": text})


class _Answering(Response):
    """An answer to a page: events as they come, and an end of all of it when the page leaves."""

    def __init__(self, relay: ModelRelay, user: User, turn: Turn) -> None:
        super().__init__(media_type="text/event-stream", headers=SAFE_HEADERS)
        del self.headers["content-length"]
        self._relay = relay
        self._user = user
        self._asked = turn

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; a turn that has no place is refused before."""
        with self._relay.place(self._user):
            async with anyio.create_task_group() as group:

                async def ends_with_the_page() -> None:
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    group.cancel_scope.cancel()

                group.start_soon(ends_with_the_page)
                await self._send(send)
                group.cancel_scope.cancel()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})

        async def say(frame: str) -> None:
            await send({"type": "http.response.body", "body": frame.encode(), "more_body": True})

        async def tell(event: Event) -> None:
            await say(f"data: {json.dumps(event)}\n\n")

        async def beat() -> None:
            # What stands in between ends connections on which nothing moves.
            while True:
                await say(":\n\n")
                await anyio.sleep(_BEAT_S)

        async with anyio.create_task_group() as group:
            group.start_soon(beat)
            await self._relay.carry_out(self._user, self._asked, tell)
            group.cancel_scope.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
