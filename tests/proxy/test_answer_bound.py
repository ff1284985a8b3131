"""Bounds of answers over HTTP: their length, and their content coding."""

import gzip
import json
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from email.message import Message
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest
from contracting import VERSIONS
from far import far_server, tool
from mcp.shared.exceptions import MCPError
from proxying import over_http, proxied
from support import counting_turns

from runner.proxy.remote import AnswerBound
from sandbox.loop_share import LoopShare

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")]

BOUND = 2 << 20
SAYS_WHY = (
    "a message of remote has more than 2097152 bytes, the longest that is taken; ask it for less, or raise"
)
TOLD = "server message too long"


def event(message: bytes) -> bytes:
    return b"event: message\ndata: " + message + b"\n\n"


class Server:
    """Answers calls as their tool is named: `FORM-CODING`, with so many bytes as they ask for.

    Attributes:
        codings: The `Accept-Encoding` of each request.
        sent: Number of bytes sent of an endless body.
    """

    def __init__(self) -> None:
        self.codings: set[str | None] = set()
        self.sent = 0

    def answer(self, _method: str, params: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": "x" * params["arguments"].get("size", 10)}]}

    def form(
        self, to_remote: dict[str, Any], headers: Message, body: bytes
    ) -> tuple[dict[str, str], Iterable[bytes]]:
        self.codings.add(headers.get("accept-encoding"))
        name = (to_remote.get("params") or {}).get("name", "json")
        form, _, coding = name.partition("-")
        kind = {"content-type": "application/json" if form in ("json", "endless") else "text/event-stream"}
        if form == "endless":
            return kind, self.without_end(b'{"jsonrpc": "2.0", "x": "')
        if form == "comments":
            return kind, self.without_end(b": ")
        if form == "events":
            events = (b": " + b"y" * 1000 + b"\n\n") * (2 * BOUND // 1000) + event(body)
        else:
            events = event(body) if form == "event" else body
        if coding:
            return {**kind, "content-encoding": coding.replace("+", ", ")}, [gzip.compress(events)]
        return kind, [events]

    def without_end(self, begin: bytes) -> Iterator[bytes]:
        yield begin
        while True:
            yield b"x" * 65536
            self.sent += 65536


CODED = [f"{form}-{coding}" for form in ("json", "event") for coding in ("gzip", "br", "gzip+gzip")]
FORMS = ["json", "event"]


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def far(server: Server) -> Iterator[str]:
    names = [
        *FORMS,
        "endless",
        "comments",
        "events",
        *CODED,
    ]
    with far_server([tool(name) for name in names], server.answer, server.form) as url:
        yield url


def mode(version: str) -> str:
    return "legacy" if version < "2026" else version


async def refusal(client: Any, name: str, **arguments: Any) -> str:
    """Return the words with which a call fails, by whichever of the two ways."""
    try:
        result = await client.call_tool(name, arguments, raise_on_error=False)
    except MCPError as error:
        return str(error)
    assert result.is_error
    return str(result.content[0].text)


@VERSIONS
@pytest.mark.parametrize("form", FORMS)
async def test_message_accepted_up_to_bound(
    folder: Path, user: str, far: str, server: Server, version: str, form: str
) -> None:
    settings = {"max_payload_bytes": BOUND, "contract": "guard"}
    async with proxied(folder, user, over_http(far), mode=mode(version), **settings) as client:
        taken = await client.call_tool(form, {"size": BOUND - 1000}, raise_on_error=False)
        refused = await refusal(client, form, size=BOUND)
        after = await client.call_tool(form, {"size": 10})

    assert not taken.is_error
    # It is kept, and a reference to it in its place.
    assert "2096152" in json.dumps([block.model_dump(mode="json") for block in taken.content])
    assert SAYS_WHY in refused
    assert after.content[0].text == "x" * 10
    assert server.codings == {"identity"}


@VERSIONS
@pytest.mark.parametrize("form", ["endless", "comments"])
async def test_endless_answer_abandoned_at_bound(
    folder: Path,
    user: str,
    far: str,
    server: Server,
    version: str,
    form: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = {"max_payload_bytes": BOUND, "contract": "guard"}
    async with proxied(folder, user, over_http(far), mode=mode(version), **settings) as client:
        assert SAYS_WHY in await refusal(client, form)
        assert (await client.call_tool("json", {})).content[0].text == "x" * 10

    # What is under way lies in the kernel.
    assert BOUND - 65536 <= server.sent < 16 * BOUND
    servers = [vars(each)["server"] for each in caplog.records if each.message == TOLD]
    assert servers == ["remote"]


@VERSIONS
@pytest.mark.parametrize("name", CODED)
async def test_unrequested_encoding_refused_by_name(
    folder: Path, user: str, far: str, version: str, name: str
) -> None:
    async with proxied(folder, user, over_http(far), mode=mode(version), contract="guard") as client:
        error = await refusal(client, name)

    coding = name.partition("-")[2].replace("+", ", ")
    assert f"an answer of remote has the content coding '{coding}', which was not asked for" in error


@VERSIONS
async def test_stream_may_be_endless_event_by_event(folder: Path, user: str, far: str, version: str) -> None:
    settings = {"max_payload_bytes": BOUND, "contract": "guard"}
    async with proxied(folder, user, over_http(far), mode=mode(version), **settings) as client:
        answer = await client.call_tool("events", {})

    assert answer.content[0].text == "x" * 10


class Body(httpx2.AsyncByteStream):
    """A body that is all there at once."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            yield part


def to_remote(method: str = "POST", accept: str = "application/json, text/event-stream") -> httpx2.Request:
    return httpx2.Request(method, "http://remote.example", headers={"accept": accept})


@pytest.mark.parametrize(
    ("status", "request_"),
    [(200, to_remote("DELETE")), (307, to_remote()), (500, to_remote()), (200, to_remote(accept="*/*"))],
    ids=["DELETE", "redirect", "error", "nobody asked for events"],
)
async def test_whole_body_is_bounded_whatever_its_headers_claim(
    status: int, request_: httpx2.Request
) -> None:
    headers = {"content-type": "text/event-stream"}
    events = [b": " + b"y" * 1000 + b"\n\n"] * (2 * BOUND // 1000)
    response = httpx2.Response(status, headers=headers, stream=Body(*events), request=request_)
    await AnswerBound(server="remote", most_bytes=BOUND).hold(response)

    with pytest.raises(httpx2.StreamError, match=SAYS_WHY):
        await response.aread()


@pytest.mark.parametrize("rests", [True, False])
async def test_long_stream_read_yields_to_other_tasks(monkeypatch: pytest.MonkeyPatch, rests: bool) -> None:
    if not rests:
        monkeypatch.setattr(LoopShare, "rest_s", lambda _self, *, now: 0.0)
    headers = {"content-type": "text/event-stream"}
    response = httpx2.Response(200, headers=headers, stream=Body(b"\n" * (1 << 20)), request=to_remote())
    await AnswerBound(server="remote", most_bytes=BOUND).hold(response)
    at: list[int] = []
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    async with counting_turns() as turns:
        async for _part in response.stream:
            time.sleep(0.01)  # noqa: ASYNC251 - it is to hold the loop up
            at.append(turns.count)
            if len(at) == 20:
                break

    between = [after - before for before, after in pairwise(at)]
    assert (max(between) > 20) is rests


@pytest.mark.parametrize("named", ["", "none", "identity, identity", "utf-8"])
async def test_body_without_encoding_read_unchanged(named: str) -> None:
    headers = {"content-type": "application/json", "content-encoding": named}
    response = httpx2.Response(200, headers=headers, stream=Body(b"{}"), request=to_remote())
    await AnswerBound(server="remote", most_bytes=BOUND).hold(response)

    assert await response.aread() == b"{}"


@pytest.mark.parametrize("end", [b"\n\n", b"\r\r", b"\r\n\r\n"], ids=repr)
async def test_events_counted_singly_whatever_ends_their_lines(end: bytes) -> None:
    headers = {"content-type": "text/event-stream"}
    events = (b"data: " + b"y" * 1000 + end) * (2 * BOUND // 1000)
    response = httpx2.Response(200, headers=headers, stream=Body(events), request=to_remote())
    await AnswerBound(server="remote", most_bytes=BOUND).hold(response)

    assert len([event async for event in httpx2.EventSource(response)]) == 2 * BOUND // 1000


async def test_event_stream_decoded_as_utf_8_whatever_its_header() -> None:
    headers = {"content-type": "text/event-stream; charset=cp037"}
    response = httpx2.Response(200, headers=headers, stream=Body(b"data: a\n\n"), request=to_remote())
    await AnswerBound(server="remote", most_bytes=BOUND).hold(response)

    assert [event.data async for event in httpx2.EventSource(response)] == ["a"]


async def test_no_coding_is_asked_for_whatever_the_entry_says() -> None:
    bound = AnswerBound(server="remote", most_bytes=BOUND)
    async with bound.client(headers={"Accept-Encoding": "gzip"}) as theirs, bound.client() as ours:
        codings = [client.headers.get_list("accept-encoding") for client in (theirs, ours)]

    assert codings == [["identity"], ["identity"]]
