"""HTTP to a server behind the proxy. The length of a message is bounded, after decoding, while it arrives.

The SDK reads an answer whole before it looks at it, and its client undoes five codings on top of each other,
without a turn of the loop in between: 400 KB became 2.5 GB. So no coding is asked for. Where one comes all
the same, as from a careless server before the server, gzip and deflate are undone in small pieces, once.
A stream of events may last for days, so there each event is bounded. It comes in small pieces, and the time
that the SDK takes for each counts: beyond a tenth of a second, others have two seconds for each.

Source: RFC 9110, 8.4 "Content-Encoding" and 12.5.3 "Accept-Encoding"; WHATWG HTML, "Server-sent events",
whose streams are UTF-8, and have the reconnection time in `retry`.
"""

import logging
import re
import time
import zlib
from asyncio import sleep
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from runner.protocol.internals.proxy import HTTP_ANSWER, sse_client
from runner.proxy.remote import ServerTransport
from runner.settings.execution import ExecutionSettings
from runner.system.now_and_then import NowAndThen
from sandbox.host.loop_share import LoopShare
from sandbox.token_bucket import TokenBucket

__all__ = ["AnswerBound", "HttpTransport", "StreamPace", "most_message_bytes"]

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class StreamPace(TokenBucket):
    """Rate limit of the streams of one client: of notifications, and one for each resumed call.

    A server names the milliseconds after which an ended stream is opened again, and the SDK does so for ever.
    """

    at_once: float = 50
    per_s: float = 10

    async def keep(self, request: httpx2.Request) -> None:
        """Hold a request back that opens a stream, if there have been many."""
        if request.method == "GET" and (wait_s := self.spend(1, now=time.monotonic())):
            await sleep(wait_s)


_PIECE_BYTES = 1 << 16
# Of a stream: a line of it, if only a blank one, takes a microsecond.
_PART_BYTES = 1 << 13
_LEAST_BYTES = 1 << 20
_IDENTITY = "identity"
_EVENTS = "text/event-stream"
# Between two events, after any of the line ends that a stream may have; the third is part of two CRLF.
_BLANK_LINE = re.compile(rb"\n\n|\r\r|\n\r")
# What servers name that code nothing.
_NO_CODINGS = frozenset({"", _IDENTITY, "none", "utf-8"})
_UNDONE = frozenset({"gzip", "x-gzip", "deflate"})
_EITHER_HEADER = zlib.MAX_WBITS | 32
# As the SDK has it: a server may be silent for long between two events.
_TIMEOUT = httpx2.Timeout(30.0, read=300.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerBound:
    """Bounds of all answers of one server.

    Attributes:
        server: Name of the server.
        most_bytes: Length of a message, with its coding undone.
        share: What its streams have taken of the event loop.
    """

    server: str
    most_bytes: int
    _telling: NowAndThen = field(default_factory=NowAndThen)
    share: LoopShare = field(default_factory=LoopShare)

    def client(
        self,
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        """Return an HTTP client whose answers are bounded; `headers` may name another coding to ask for.

        Redirects are left to the SDK, which follows those within an origin.
        """
        wanted = httpx2.Headers({"accept-encoding": _IDENTITY})
        wanted.update(headers)
        hooks: dict[str, list[Any]] = {"request": [StreamPace().keep], "response": [self.hold]}
        return httpx2.AsyncClient(headers=wanted, timeout=timeout or _TIMEOUT, auth=auth, event_hooks=hooks)

    async def hold(self, response: httpx2.Response) -> None:
        """Bound an answer of which nothing has been read.

        A reader of too much of it gets `httpx2.StreamError`. In a stream of events a problem is
        `httpx2.SSEError`: of these the SDK makes an answer, with their words.
        """
        answer, is_post = HTTP_ANSWER.get(), response.request.method == "POST"
        # Streams that are opened beside, or again, answer no request.
        if answer is not None and (is_post or not answer.status):
            answer.status = response.status_code
            answer.retry_after = response.headers.get("retry-after", "")
            answer.in_session = "mcp-session-id" in response.request.headers
        is_stream = _is_stream(response)
        named = response.headers.get_list("content-encoding", split_commas=True)
        codings = [name for each in named if (name := each.strip().lower()) not in _NO_CODINGS]
        if is_stream:
            # Whatever their header names.
            response.encoding = "utf-8"
        response.headers.pop("content-encoding", None)
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - the client is asynchronous
        response.stream = _Counted(response.stream, self, codings, is_stream=is_stream)

    def too_long(self) -> str:
        """Log that a message was too long, and return the sentence for its receiver."""
        times = self._telling.due(now=time.monotonic())
        if times:
            facts = {"server": self.server, "most_bytes": self.most_bytes, "times": times}
            log.warning("server message too long", extra=facts)
        return (
            f"a message of {self.server} has more than {self.most_bytes} bytes, the longest that is taken; "
            "ask it for less, or raise max_payload_bytes"
        )


def most_message_bytes(settings: ExecutionSettings) -> int:
    """Return the largest size of a server's message: the longest answer of any tool, or of a list."""
    return max(settings.widest_limits().frame_bytes, _LEAST_BYTES)


def _is_stream(response: httpx2.Response) -> bool:
    """Return whether an answer is read event by event: declared so, and accepted by its request."""
    request = response.request
    wanted = request.method != "DELETE" and _EVENTS in request.headers.get("accept", "")
    kind = response.headers.get("content-type", "").lower()
    return wanted and response.is_success and kind.startswith(_EVENTS)


@dataclass(slots=True, eq=False)
class _Counted(httpx2.AsyncByteStream):
    """The body of an answer, without its coding.

    Attributes:
        inner: The body as it comes.
        bound: Bounds of all answers of the server.
        codings: What it is coded in.
        is_stream: Whether it is read event by event.
    """

    inner: httpx2.AsyncByteStream
    bound: AnswerBound
    codings: list[str]
    is_stream: bool
    # Of a message: the whole body, or the event that a stream is in; and its last byte.
    _size: int = 0
    _last: bytes = b""

    def _problem(self, words: str) -> httpx2.SSEError | httpx2.StreamError:
        return httpx2.SSEError(words) if self.is_stream else httpx2.StreamError(words)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._pieces():
            if not self.is_stream:
                yield piece
                continue
            for start in range(0, len(piece), _PART_BYTES):
                part = piece[start : start + _PART_BYTES]
                turn = self.bound.share.turn()
                self._measure(part)
                yield part
                await turn.end()

    def _measure(self, part: bytes) -> None:
        """Count the bytes of the event that a part of a stream belongs to."""
        ends, *begins = _BLANK_LINE.split(self._last + part)
        self._size += len(ends) - len(self._last)
        self._last = part[-1:]
        if self._size > self.bound.most_bytes:
            raise self._problem(self.bound.too_long())
        if begins:
            self._size = len(begins[-1])

    async def _pieces(self) -> AsyncIterator[bytes]:
        """Yield decoded pieces of the body; of one that is a message, as long as it is within the bound."""
        if len(self.codings) > 1 or not _UNDONE.issuperset(self.codings):
            raise self._problem(
                f"an answer of {self.bound.server} has the content coding {', '.join(self.codings)!r}, "
                "which was not asked for; let it, or what stands before it, heed `Accept-Encoding: identity`"
            )
        coded = zlib.decompressobj(_EITHER_HEADER) if self.codings else None
        async for data in self.inner:
            for piece in (data,) if coded is None else self._undone(coded, data):
                if not self.is_stream:
                    self._size += len(piece)
                    if self._size > self.bound.most_bytes:
                        raise self._problem(self.bound.too_long())
                yield piece
                if coded is not None:
                    # What is little on the wire can be much here.
                    await sleep(0)
            if coded is not None and coded.eof:
                return

    def _undone(self, coded: "zlib._Decompress", data: bytes) -> Iterator[bytes]:
        try:
            while piece := coded.decompress(data, _PIECE_BYTES):
                yield piece
                data = coded.unconsumed_tail
        except zlib.error as error:
            raise self._problem(
                f"an answer of {self.bound.server} cannot be decompressed: {error}"
            ) from error

    async def aclose(self) -> None:
        await self.inner.aclose()


class HttpTransport(ServerTransport):
    """Connection to one URL, over streamable HTTP or the older transport over SSE.

    FastMCP's own has no bound of a body, and one of 1 MiB for an event; most servers send results as events.
    """

    def __init__(self, url: str, headers: Mapping[str, str], bound: AnswerBound) -> None:
        self._url = url
        self._headers = dict(headers)
        self._bound = bound
        # The address of the older transport ends like this by custom, which FastMCP follows too.
        self.legacy_only = url.rstrip("/").endswith("/sse")

    @asynccontextmanager
    async def connect_session(self, **session_kwargs: Any) -> AsyncIterator[ClientSession]:
        """Connect; yields the session, which ends with the connection."""
        async with AsyncExitStack() as stack:
            if self.legacy_only:
                streams = sse_client(self._url, self._headers, httpx_client_factory=self._bound.client)
            else:
                client = await stack.enter_async_context(self._bound.client(self._headers))
                streams = streamable_http_client(self._url, http_client=client, max_sse_event_size=None)
            read, write = await stack.enter_async_context(streams)
            yield await stack.enter_async_context(self.session_class(read, write, **session_kwargs))
