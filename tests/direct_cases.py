"""Requests to a server that answers usual calls directly: one table for both transports.

A message is usual, or it is not, whatever brings it. A case says where a transport makes a difference: over
HTTP there are headers beside a message, which have to be as usual too; over stdio there is what came before.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "CASES",
    "DISCOVER",
    "INITIALIZE",
    "INITIALIZED",
    "IN_SESSIONS",
    "META",
    "VERSION",
    "Case",
    "Headers",
    "InSession",
    "initialize",
    "message",
    "plain",
    "usual",
]

Headers = Iterable[tuple[str, str]]

VERSION = "2026-07-28"
META: Mapping[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
}
DISCOVER = {"jsonrpc": "2.0", "id": "d", "method": "server/discover", "params": {"_meta": META}}


def initialize(version: str, **able: Any) -> dict[str, Any]:
    """Return the first request of a client of the handshake era, with what it can do."""
    about = {"name": "tests", "version": "1"}
    params = {"protocolVersion": version, "capabilities": able, "clientInfo": about}
    return {"jsonrpc": "2.0", "id": "i", "method": "initialize", "params": params}


INITIALIZE = initialize("2025-11-25")
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def message(tool: str, arguments: Any = None, **more: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments or {}, "_meta": META, **more.pop("params", {})}
    return {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params, **more}


def plain(tool: str, arguments: Any = None, **more: Any) -> dict[str, Any]:
    """Return a call of the handshake era, which has no envelope."""
    params = {"name": tool, "arguments": arguments or {}, **more.pop("params", {})}
    return {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params, **more}


def usual(tool: str, **more: str) -> list[tuple[str, str]]:
    """Return the headers that go with a call over HTTP, with more of them, or others."""
    named = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": VERSION,
        "mcp-method": "tools/call",
        "mcp-name": tool,
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    return list(named.items())


@dataclass(frozen=True, kw_only=True)
class Case:
    """A request.

    Attributes:
        message: What is sent.
        headers: What is sent beside it over HTTP.
        before: What is sent ahead of it over stdio.
        by_http: Whether it is answered directly over HTTP; None where it says nothing there.
        by_stdio: Whether it is answered directly over stdio; None where it says nothing there.
        is_answered: Whether it is answered at all over stdio, where nobody can answer what has no id.
    """

    message: Any
    headers: Headers
    before: tuple[Any, ...] = (DISCOVER,)
    by_http: bool | None
    by_stdio: bool | None
    is_answered: bool = True


def taken(tool: str, arguments: Any = None, **more: Any) -> Case:
    """Return a call that both transports answer directly."""
    return Case(message=message(tool, arguments, **more), headers=usual(tool), by_http=True, by_stdio=True)


def left(message: Any, *, tool: str = "echo", is_answered: bool = True) -> Case:
    """Return a message that both transports leave to the SDK."""
    return Case(message=message, headers=usual(tool), by_http=False, by_stdio=False, is_answered=is_answered)


def differing(message: Any, headers: Headers, *, by_http: bool, by_stdio: bool | None = None) -> Case:
    """Return a message with which it is something of HTTP that decides."""
    return Case(message=message, headers=headers, by_http=by_http, by_stdio=by_stdio)


def opening(*before: Any, message: Any) -> Case:
    """Return a message whose forerunners decide, as they can over stdio only."""
    return Case(message=message, headers=(), before=before, by_http=None, by_stdio=False)


def meta(**changed: Any) -> dict[str, Any]:
    """Return params with other members of the envelope, by the end of their names; None leaves one out."""
    named = {f"io.modelcontextprotocol/{name}": value for name, value in changed.items()}
    return {"_meta": {name: value for name, value in {**META, **named}.items() if value is not None}}


def without(headers: Headers, *names: str) -> list[tuple[str, str]]:
    return [header for header in headers if header[0] not in names]


BARE = {**message("echo"), "params": {"name": "echo"}}
EVERY_KIND: list[object] = [None, True, 1.5, 1e300, "ü\u2028\U0001f600", {"a": None, "b": {}}, 2**70]

CASES: Mapping[str, Case] = {
    # Usual, whatever brings them.
    "a call": taken("echo", {"value": "x"}),
    "text of every kind": taken("echo", {"value": "ü\u2028\ud83d\ude00"}),
    "no arguments": taken("echo"),
    "arguments left out": Case(
        message={**message("echo"), "params": {"name": "echo", "_meta": META}},
        headers=usual("echo"),
        by_http=True,
        by_stdio=True,
    ),
    "an id that is text": taken("echo", {"value": 1}, id="seven"),
    "values of every kind": taken("echo", {"value": EVERY_KIND}),
    "an unknown argument": taken("echo", {"other": 1}),
    "an argument of a wrong type": taken("steps", {"count": "many"}),
    "a tool that fails": taken("fails"),
    "headers that a tool asks for": taken("headers"),
    "a stranger's capabilities": taken("echo", params=meta(clientCapabilities=5)),
    "a nameless client": taken("echo", params=meta(clientInfo=None)),
    "steps that nobody wants to hear of": taken("steps", {"count": 2}),
    "steps": taken("steps", {"count": 3}, params={"_meta": {**META, "progressToken": "p"}}),
    "a question": taken("asks"),
    # Unusual, whatever brings them.
    "an unknown tool": left(message("nothing"), tool="nothing"),
    "another method": Case(
        message={**message("x"), "method": "tools/list"},
        headers=usual("x", mcp_method="tools/list"),
        by_http=False,
        by_stdio=False,
    ),
    "a name that is not text": left(message("echo", params={"name": 5})),
    "an old version": left(message("echo", params=meta(protocolVersion="2025-11-25"))),
    "a version of tomorrow": left(message("echo", params=meta(protocolVersion="2030-01-01"))),
    "no envelope": left({**message("echo"), "params": {"name": "echo", "arguments": {}}}),
    "no envelope and no arguments": left(BARE),
    "half an envelope": left(message("echo", params=meta(clientInfo=None, clientCapabilities=None))),
    "an envelope that is not an object": left(message("echo", params={"_meta": []})),
    "arguments that are not an object": left(message("echo", params={"arguments": [1]})),
    "no params": left({"jsonrpc": "2.0", "id": 1, "method": "tools/call"}),
    "no id": left({key: value for key, value in message("echo").items() if key != "id"}, is_answered=False),
    "an id that is null": left(message("echo", id=None), is_answered=False),
    "an id that is true": left(message("echo", id=True), is_answered=False),
    "an id that is a fraction": left(message("echo", id=1.5), is_answered=False),
    "a version of JSON-RPC": left(message("echo", jsonrpc="1.0"), is_answered=False),
    "no message": left({"jsonrpc": "2.0", "nothing": 1}, is_answered=False),
    "a later round": left(message("echo", params={"requestState": "x", "inputResponses": {}})),
    "a later round of a question": left(
        message("asks", params={"requestState": "x", "inputResponses": {}}), tool="asks"
    ),
    "messages wanted": left(message("steps", {"count": 2}, params=meta(logLevel="info")), tool="steps"),
    "a batch": left([message("echo")], is_answered=False),
    "a mirrored argument": Case(
        message=message("mirrored", {"region": "a"}),
        headers=usual("mirrored", mcp_param_region="a"),
        by_http=False,
        by_stdio=False,
    ),
    "a mirrored argument that is missing": left(message("mirrored", {"region": "a"}), tool="mirrored"),
    # What HTTP alone has: headers.
    "headers of its own": differing(
        message("headers"), usual("headers", x_own="Ä", cookie="toolcell_session=x"), by_http=True
    ),
    "another order of kinds": differing(
        message("echo"), usual("echo", accept="text/event-stream;q=1, application/json"), by_http=True
    ),
    "a method that its header denies": differing(
        message("echo"), usual("echo", mcp_method="tools/list"), by_http=False
    ),
    "a name that its header denies": differing(message("echo"), usual("fails"), by_http=False),
    "a name that its header leaves out": differing(
        message("echo"), without(usual("echo"), "mcp-name"), by_http=False
    ),
    "a name that its header says twice": differing(
        message("echo"), [*usual("echo"), ("mcp-name", "echo")], by_http=False
    ),
    "a name that its header encodes": differing(
        message("echo"), usual("echo", mcp_name="=?base64?ZWNobw==?="), by_http=False
    ),
    "no version in the headers": differing(
        message("echo"), without(usual("echo"), "mcp-protocol-version"), by_http=False
    ),
    "a version of tomorrow in the headers": differing(
        message("echo"), usual("echo", mcp_protocol_version="2030-01-01"), by_http=False
    ),
    "an old version in the headers": differing(
        message("echo"), usual("echo", mcp_protocol_version="2025-11-25"), by_http=False
    ),
    "JSON only": differing(message("echo"), usual("echo", accept="application/json"), by_http=False),
    "anything": differing(message("echo"), usual("echo", accept="*/*"), by_http=False),
    "nothing acceptable": differing(message("echo"), usual("echo", accept="text/html"), by_http=False),
    "a header of a parameter that nobody declares": differing(
        message("echo"), usual("echo", mcp_param_x="1"), by_http=False
    ),
    # What the two see differently: lines are read by the SDK's own types, and are as long as they like.
    "a member more": differing(message("echo", more=1), usual("echo"), by_http=False, by_stdio=True),
    "a long body": differing(
        message("echo", {"value": "x" * 70_000}), usual("echo"), by_http=False, by_stdio=True
    ),
    "half a character": Case(
        message=message("echo", {"value": "\ud83d"}),
        headers=usual("echo"),
        by_http=True,
        by_stdio=True,
    ),
    # What stdio alone has: the first request decides for an era.
    "the first request": opening(message=message("echo")),
    "a client of the handshake": Case(
        message=BARE, headers=(), before=(INITIALIZE, INITIALIZED), by_http=None, by_stdio=True
    ),
    "a client of the handshake with an envelope": opening(INITIALIZE, INITIALIZED, message=message("echo")),
}


@dataclass(frozen=True, kw_only=True)
class InSession:
    """A request in a session of the handshake era.

    Attributes:
        message: What is sent.
        by_http: Whether it is answered directly over HTTP.
        by_stdio: Whether it is answered directly over stdio; None where it says nothing there.
        headers: Headers over HTTP that differ from what a client sends; None leaves one out.
        is_answered: Whether it is answered at all over stdio.
    """

    message: Any
    by_http: bool = True
    by_stdio: bool | None = True
    headers: Mapping[str, str | None] = field(default_factory=dict)
    is_answered: bool = True


def sdks(message: Any, *, is_answered: bool = True) -> InSession:
    """Return a message in a session that both transports leave to the SDK."""
    return InSession(message=message, by_http=False, by_stdio=False, is_answered=is_answered)


def by_headers(*, by_http: bool, **headers: str | None) -> InSession:
    """Return a call with which it is headers that decide."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return InSession(message=plain("echo", {"value": 1}), by_http=by_http, by_stdio=None, headers=named)


IN_SESSIONS: Mapping[str, InSession] = {
    # Usual.
    "a call": InSession(message=plain("echo", {"value": "x"})),
    "values of every kind": InSession(message=plain("echo", {"value": EVERY_KIND})),
    "no arguments": InSession(message=plain("echo")),
    "arguments left out": InSession(message=BARE),
    "an id that is text": InSession(message=plain("echo", {"value": 1}, id="seven")),
    "an id that is text of a number": InSession(message=plain("echo", {"value": 1}, id="7")),
    "an id of zero": InSession(message=plain("echo", {"value": 1}, id=0)),
    "an unknown argument": InSession(message=plain("echo", {"other": 1})),
    "an argument of a wrong type": InSession(message=plain("steps", {"count": "many"})),
    "a tool that fails": InSession(message=plain("fails")),
    "headers that a tool asks for": InSession(message=plain("headers")),
    "steps that nobody wants to hear of": InSession(message=plain("steps", {"count": 2})),
    "steps": InSession(message=plain("steps", {"count": 3}, params={"_meta": {"progressToken": "p"}})),
    "steps of a number": InSession(
        message=plain("steps", {"count": 3}, params={"_meta": {"progressToken": 5}})
    ),
    "a question of the later era": InSession(message=plain("asks")),
    "a long result": InSession(message=plain("many")),
    # Unusual.
    "an unknown tool": sdks(plain("nothing")),
    "a list of tools": sdks({"jsonrpc": "2.0", "id": 7, "method": "tools/list"}),
    "a ping": sdks({"jsonrpc": "2.0", "id": 7, "method": "ping"}),
    "an unknown method": sdks({"jsonrpc": "2.0", "id": 7, "method": "tools/nothing", "params": {}}),
    "a name that is not text": sdks(plain("echo", params={"name": 5})),
    "arguments that are not an object": sdks(plain("echo", params={"arguments": [1]})),
    "arguments that are null": sdks(plain("echo", params={"arguments": None})),
    "an envelope that is not an object": sdks(plain("echo", params={"_meta": []})),
    "an envelope of the later era": sdks(message("echo")),
    "a task": sdks(plain("echo", params={"task": {"ttl": 1}})),
    "no params": sdks({"jsonrpc": "2.0", "id": 7, "method": "tools/call"}),
    "a mirrored argument": sdks(plain("mirrored", {"region": "a"})),
    "a notification": sdks({"jsonrpc": "2.0", "method": "notifications/initialized"}, is_answered=False),
    "a cancellation of nothing": sdks(
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}},
        is_answered=False,
    ),
    "an answer to nothing": sdks({"jsonrpc": "2.0", "id": 99, "result": {}}, is_answered=False),
    "an id that is null": sdks(plain("echo", id=None), is_answered=False),
    "an id that is true": sdks(plain("echo", id=True), is_answered=False),
    "an id that is a fraction": sdks(plain("echo", id=1.5), is_answered=False),
    "a version of JSON-RPC": sdks(plain("echo", jsonrpc="1.0"), is_answered=False),
    "a batch": sdks([plain("echo")], is_answered=False),
    # What HTTP alone has.
    "no version in the headers": by_headers(by_http=True, mcp_protocol_version=None),
    "another version in the headers": by_headers(by_http=True, mcp_protocol_version="2024-11-05"),
    "a version of tomorrow in the headers": by_headers(by_http=False, mcp_protocol_version="2030-01-01"),
    "the later era in the headers": by_headers(by_http=False, mcp_protocol_version=VERSION),
    "a type with a set of characters": by_headers(
        by_http=True, content_type="application/json; charset=utf-8"
    ),
    "a type in large letters": by_headers(by_http=False, content_type="Application/JSON"),
    "another type": by_headers(by_http=False, content_type="text/plain"),
    "no type": by_headers(by_http=False, content_type=None),
    "JSON only": by_headers(by_http=False, accept="application/json"),
    "events only": by_headers(by_http=False, accept="text/event-stream"),
    "anything": by_headers(by_http=False, accept="*/*"),
    "nothing acceptable": by_headers(by_http=False, accept="text/html"),
    "no session": by_headers(by_http=False, mcp_session_id=None),
    "an unknown session": by_headers(by_http=False, mcp_session_id="0" * 32),
    "a session that is not text": by_headers(by_http=False, mcp_session_id="\xe4"),
    "what came last": by_headers(by_http=True, last_event_id="5"),
    "a member more": InSession(message=plain("echo", more=1), by_http=False),
    "a long body": InSession(message=plain("echo", {"value": "x" * 70_000}), by_http=False),
    "half a character": InSession(message=plain("echo", {"value": "\ud83d"}), by_http=False),
}
"""Requests in a session, after its handshake."""
