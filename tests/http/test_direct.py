"""Calls that are answered directly: the same bytes as through the SDK, whatever is sent."""

import asyncio
import contextlib
import json
import re
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from starlette.applications import Starlette
from starlette.types import Message
from support import settings_in

from runner import direct as what_is_direct
from runner.cell import Cell
from runner.direct import DirectCall
from runner.host import make_host
from runner.http import direct
from runner.http.app import make_web
from runner.http.site import Site

pytestmark = pytest.mark.anyio

TOOLS = Path(__file__).parents[1] / "tools" / "usual.py"
HOME = Path(f"/tmp/t-{uuid.uuid4().hex[:12]}")
VERSION = "2026-07-28"
META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
}


@dataclass
class Webs:
    """One set of tools behind two applications: one that answers directly, and one that never does."""

    cell: Cell
    direct: Starlette
    plain: Starlette
    taken: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def webs(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Webs]:
    folder = tmp_path_factory.mktemp("direct")
    folder.chmod(0o700)
    settings = settings_in(folder, user=HOME.name)
    async with contextlib.AsyncExitStack() as stack:
        cell = await stack.enter_async_context(Cell.open(settings, [str(TOOLS)]))
        site = Site(settings=settings, library=cell.library, events=cell.events, tokens=cell.links.tokens)
        opened = []
        taken: list[str] = []
        for directly in (True, False):
            host = make_host(cell, transport="http", download_url=None)
            answer = host.direct.answer

            async def noted(call: DirectCall, answer: Any = answer) -> dict[str, Any]:
                taken.append(call.params["name"])
                result: dict[str, Any] = await answer(call)
                return result

            host.direct.answer = noted  # type: ignore[method-assign]
            web = make_web(host, site, direct=host.direct if directly else None)
            await stack.enter_async_context(web.router.lifespan_context(web))
            opened.append(web)
        yield Webs(cell=cell, direct=opened[0], plain=opened[1], taken=taken)


async def post(
    web: Starlette,
    body: bytes,
    headers: list[tuple[str, str]],
    *,
    leaves: asyncio.Event | None = None,
    sent: list[Message] | None = None,
) -> list[Message]:
    """Post to `/mcp` and return what was sent back; `leaves` says when the client goes."""
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/mcp",
        "raw_path": b"/mcp",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1:8000"), (b"content-length", b"%d" % len(body))]
        + [(name.encode(), value.encode("latin-1")) for name, value in headers],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }
    given, sent = False, [] if sent is None else sent

    async def receive() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        await (leaves or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await web(scope, receive, send)
    return sent


def usual(tool: str, **more: str) -> list[tuple[str, str]]:
    named = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": VERSION,
        "mcp-method": "tools/call",
        "mcp-name": tool,
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    return list(named.items())


def message(tool: str, arguments: Any = None, **more: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments or {}, "_meta": META, **more.pop("params", {})}
    return {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params, **more}


def shown(sent: list[Message]) -> list[Any]:
    """Return messages with what differs from call to call made equal."""

    def alike(value: Any) -> Any:
        if isinstance(value, bytes):
            return re.sub(rb'"(requestState|call|call_id)":"[^"]*"', rb'"\1":"..."', value)
        return value

    said = []
    for entry in sent:
        plain = {key: alike(value) for key, value in entry.items() if key != "more_body"}
        if "headers" in plain:
            sorts = sorted(plain["headers"])
            plain["headers"] = [(name, value) for name, value in sorts if name != b"mcp-session-id"]
        said.append(plain)
    return said


async def both(webs: Webs, body: bytes, headers: list[tuple[str, str]]) -> tuple[list[Any], bool]:
    """Return what both applications answer, which must be the same, and whether one did so directly."""
    webs.taken.clear()
    directly = await post(webs.direct, body, headers)
    was_taken = bool(webs.taken)
    plainly = await post(webs.plain, body, headers)
    if not any(b"requestState" in entry.get("body", b"") for entry in plainly):
        assert shown(directly) == shown(plainly)
    return directly, was_taken


DIRECT: Mapping[str, tuple[dict[str, Any], list[tuple[str, str]]]] = {
    "a call": (message("echo", {"value": "x"}), usual("echo")),
    "no arguments": (message("echo"), usual("echo")),
    "arguments left out": (
        {**message("echo"), "params": {"name": "echo", "_meta": META}},
        usual("echo"),
    ),
    "an id that is text": (message("echo", {"value": 1}, id="seven"), usual("echo")),
    "values of every kind": (
        message("echo", {"value": [None, True, 1.5, 1e300, "ü\u2028\ud83d", {"a": None, "b": {}}, 2**70]}),
        usual("echo"),
    ),
    "an unknown argument": (message("echo", {"other": 1}), usual("echo")),
    "an argument of a wrong type": (message("steps", {"count": "many"}), usual("steps")),
    "a tool that fails": (message("fails"), usual("fails")),
    "headers of its own": (message("headers"), usual("headers", x_own="Ä", cookie="toolcell_session=x")),
    "a stranger's capabilities": (
        message("echo", params={"_meta": {**META, "io.modelcontextprotocol/clientCapabilities": 5}}),
        usual("echo"),
    ),
    "a nameless client": (
        message("echo", params={"_meta": {key: META[key] for key in META if "Info" not in key}}),
        usual("echo"),
    ),
    "steps that nobody wants to hear of": (message("steps", {"count": 2}), usual("steps")),
    "steps": (
        message("steps", {"count": 3}, params={"_meta": {**META, "progressToken": "p"}}),
        usual("steps"),
    ),
    "a question": (message("asks"), usual("asks")),
    "another order of kinds": (
        message("echo"),
        usual("echo", accept="text/event-stream;q=1, application/json"),
    ),
}


@pytest.mark.parametrize("name", DIRECT)
async def test_a_usual_call_is_answered_directly_and_byte_by_byte_as_by_the_sdk(
    webs: Webs, name: str
) -> None:
    said, headers = DIRECT[name]

    _, directly = await both(webs, json.dumps(said).encode(), headers)

    assert directly


def without(headers: list[tuple[str, str]], *names: str) -> list[tuple[str, str]]:
    return [header for header in headers if header[0] not in names]


UNUSUAL: Mapping[str, tuple[Any, list[tuple[str, str]]]] = {
    "an unknown tool": (message("nothing"), usual("nothing")),
    "another method": ({**message("x"), "method": "tools/list"}, usual("x", mcp_method="tools/list")),
    "a method that its header denies": (message("echo"), usual("echo", mcp_method="tools/list")),
    "a name that its header denies": (message("echo"), usual("fails")),
    "a name that its header leaves out": (message("echo"), without(usual("echo"), "mcp-name")),
    "a name that its header says twice": (message("echo"), [*usual("echo"), ("mcp-name", "echo")]),
    "a name that its header encodes": (message("echo"), usual("echo", mcp_name="=?base64?ZWNobw==?=")),
    "a name that is no text": (message("echo", params={"name": 5}), usual("echo")),
    "no version": (message("echo"), without(usual("echo"), "mcp-protocol-version")),
    "a version of tomorrow": (message("echo"), usual("echo", mcp_protocol_version="2030-01-01")),
    "an old version": (message("echo"), usual("echo", mcp_protocol_version="2025-11-25")),
    "two versions": (
        message("echo", params={"_meta": {**META, "io.modelcontextprotocol/protocolVersion": "2025-11-25"}}),
        usual("echo"),
    ),
    "no envelope": ({**message("echo"), "params": {"name": "echo", "arguments": {}}}, usual("echo")),
    "half an envelope": (
        message("echo", params={"_meta": {"io.modelcontextprotocol/protocolVersion": VERSION}}),
        usual("echo"),
    ),
    "an envelope that is no object": (message("echo", params={"_meta": []}), usual("echo")),
    "arguments that are no object": (message("echo", params={"arguments": [1]}), usual("echo")),
    "no params": ({"jsonrpc": "2.0", "id": 1, "method": "tools/call"}, usual("echo")),
    "no id": ({key: value for key, value in message("echo").items() if key != "id"}, usual("echo")),
    "an id that is null": (message("echo", id=None), usual("echo")),
    "an id that is true": (message("echo", id=True), usual("echo")),
    "an id that is a fraction": (message("echo", id=1.5), usual("echo")),
    "a version of JSON-RPC": (message("echo", jsonrpc="1.0"), usual("echo")),
    "a member more": (message("echo", more=1), usual("echo")),
    "a later round": (message("echo", params={"requestState": "x", "inputResponses": {}}), usual("echo")),
    "messages wanted": (
        message(
            "steps", {"count": 2}, params={"_meta": {**META, "io.modelcontextprotocol/logLevel": "info"}}
        ),
        usual("steps"),
    ),
    "a batch": ([message("echo")], usual("echo")),
    "JSON only": (message("echo"), usual("echo", accept="application/json")),
    "anything": (message("echo"), usual("echo", accept="*/*")),
    "nothing acceptable": (message("echo"), usual("echo", accept="text/html")),
    "a long body": (message("echo", {"value": "x" * 70_000}), usual("echo")),
    "a mirrored argument": (message("mirrored", {"region": "a"}), usual("mirrored", mcp_param_region="a")),
    "a mirrored argument that is missing": (message("mirrored", {"region": "a"}), usual("mirrored")),
    "a header of a parameter that nobody declares": (message("echo"), usual("echo", mcp_param_x="1")),
}


@pytest.mark.parametrize("name", UNUSUAL)
async def test_an_unusual_request_goes_to_the_sdk(webs: Webs, name: str) -> None:
    said, headers = UNUSUAL[name]

    _, directly = await both(webs, json.dumps(said).encode(), headers)

    assert not directly


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 60_000, b'{"id":' + b"9" * 5000 + b"}"]
)
async def test_a_body_that_is_no_request_goes_to_the_sdk(webs: Webs, body: bytes) -> None:
    answered, directly = await both(webs, body, usual("echo"))

    assert not directly
    assert answered[0]["status"] == 400


async def test_steps_are_told_before_the_answer(webs: Webs) -> None:
    said, headers = DIRECT["steps"]

    answered, _ = await both(webs, json.dumps(said).encode(), headers)

    events = b"".join(entry.get("body", b"") for entry in answered).split(b"\r\n\r\n")
    kinds = [json.loads(event.split(b"data: ")[1]).get("method", "answer") for event in events if event]
    assert dict(answered[0]["headers"])[b"content-type"] == b"text/event-stream"
    assert kinds == ["notifications/progress"] * 3 + ["answer"]


async def test_the_state_of_a_question_is_sealed_and_taken_back(webs: Webs) -> None:
    answered, directly = await both(webs, json.dumps(message("asks")).encode(), usual("asks"))
    result = json.loads(answered[1]["body"])["result"]
    state = result["requestState"]
    back = message("asks", params={"requestState": state, "inputResponses": {}})
    forged = message("asks", params={"requestState": f"{state[:-4]}AAAA", "inputResponses": {}})
    taken_back = json.loads((await post(webs.direct, json.dumps(back).encode(), usual("asks")))[1]["body"])
    refused = json.loads((await post(webs.direct, json.dumps(forged).encode(), usual("asks")))[1]["body"])

    assert directly
    assert result["resultType"] == "input_required"
    assert "secret" not in state
    assert taken_back["result"]["resultType"] == "input_required"
    assert "requestState" in refused["error"]["message"]


async def test_a_client_that_leaves_ends_its_call(webs: Webs) -> None:
    left = asyncio.Event()
    body = json.dumps(message("told", {"mark": "begun"})).encode()
    mark = HOME / "begun"

    asking = asyncio.create_task(post(webs.direct, body, usual("told"), leaves=left))
    async with asyncio.timeout(60):
        while not mark.exists():
            await asyncio.sleep(0.01)
        left.set()
        sent = await asking

    assert sent == []
    answered, _ = await both(webs, json.dumps(message("echo", {"value": "after"})).encode(), usual("echo"))
    assert b"after" in answered[1]["body"]


async def test_a_silent_call_keeps_its_connection_alive(webs: Webs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "_PING_S", 0.05)
    monkeypatch.setattr(direct, "_PATIENCE_S", 0.0)
    left = asyncio.Event()
    pinged: list[Message] = []
    body = json.dumps(message("told", {"mark": "pinged"})).encode()

    class Listening(list[Message]):
        def append(self, entry: Message) -> None:
            pinged.append(entry)
            if len(pinged) > 2:
                left.set()

    async with asyncio.timeout(60):
        await post(webs.direct, body, usual("told"), leaves=left, sent=Listening())

    assert [entry.get("body", b"") for entry in pinged[:3]] == [b"", b": ping\r\n\r\n", b": ping\r\n\r\n"]


async def test_a_server_that_traces_sees_every_call(webs: Webs, monkeypatch: pytest.MonkeyPatch) -> None:
    class Traced(trace.NoOpTracerProvider):
        pass

    monkeypatch.setattr(what_is_direct, "get_tracer_provider", Traced)

    _, directly = await both(webs, json.dumps(message("echo")).encode(), usual("echo"))

    assert not directly
