"""Random requests over HTTP and stdio in every version: our server answers with the bytes of the SDK's."""

import copy
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st
from mcp_requests import DISCOVER, INITIALIZED, META, VERSION, initialize, plain, usual
from mcp_types import JSONRPCRequest, jsonrpc_message_adapter
from support import becomes
from two_servers import Client, Webs, finals, opened_in, post, served, whole

pytestmark = pytest.mark.anyio

VERSIONS = ("2025-03-26", "2025-06-18", "2025-11-25", VERSION)
PREFIX = "io.modelcontextprotocol/"
ABSENT = "left out"

values = st.recursive(
    st.sampled_from((None, True, 0, 1.5, 1e300, 2**70, "ü\u2028\U0001f600", "\ud83d", "7", float("nan")))
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
calls = st.sampled_from(
    [
        ("echo", {}),
        ("steps", {"count": 2}),
        ("steps", {"count": "many"}),
        ("fails", {}),
        ("headers", {}),
        ("asks", {}),
        ("mirrored", {"region": "a"}),
        ("nothing", {}),
    ]
) | st.tuples(st.just("echo"), st.dictionaries(st.sampled_from(("value", "other")), values, max_size=2))
members = st.sampled_from(
    [
        ("jsonrpc",),
        ("id",),
        ("method",),
        ("more",),
        ("params",),
        ("params", "name"),
        ("params", "arguments"),
        ("params", "_meta"),
        ("params", "task"),
        ("params", "requestState"),
        ("params", "_meta", "progressToken"),
        ("params", "_meta", "toolcell/report"),
        *(("params", "_meta", f"{PREFIX}{name}") for name in ("protocolVersion", "clientInfo", "logLevel")),
        ("params", "_meta", f"{PREFIX}clientCapabilities"),
    ]
)
odd: st.SearchStrategy[Any] = st.sampled_from(
    (ABSENT, None, True, 1.5, 0, "7", "info", [], {}, {"a": None}, VERSION, "2030-01-01", "ping", "echo")
)
headers = st.tuples(
    st.sampled_from(
        (
            *("content-type", "accept", "mcp-protocol-version", "mcp-method", "mcp-name", "mcp-session-id"),
            *("mcp-param-region", "last-event-id", "x-own"),
        )
    ),
    st.sampled_from(
        (
            *(ABSENT, "twice", "application/json", "Application/JSON", "application/json; charset=utf-8"),
            *("text/event-stream", "text/event-stream;q=1, application/json", "*/*", "text/html", VERSION),
            *(
                "2025-06-18",
                "2030-01-01",
                "tools/call",
                "tools/list",
                "echo",
                "=?base64?ZWNobw==?=",
                "a",
                "\xe4",
            ),
        )
    ),
)
bodies = st.sampled_from((b"", b"{", b"[]", b"null", b"\xff", b"[" * 60_000, b'{"id":' + b"9" * 5000 + b"}"))


def few(one: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Return lists of two at most, of which most are empty: a request is usual in all respects or in none."""
    return st.sampled_from((0, 0, 0, 1, 2)).flatmap(lambda size: st.lists(one, min_size=size, max_size=size))


def changed(request: dict[str, Any], changes: list[tuple[tuple[str, ...], Any]]) -> Any:
    """Return a request with other members."""
    request = copy.deepcopy(request)
    for path, value in changes:
        parent: Any = request
        for key in path[:-1]:
            parent = parent.get(key) if isinstance(parent, dict) else None
        if isinstance(parent, dict):
            parent.pop(path[-1], None)
            if value != ABSENT:
                parent[path[-1]] = value
    return request


def with_changed(plain: list[tuple[str, str]], changes: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return headers with others in their place, beside them, or without them."""
    found = list(plain)
    for name, value in changes:
        if value == "twice":
            found += [each for each in found if each[0] == name][:1]
        else:
            found = [each for each in found if each[0] != name]
            found += [] if value == ABSENT else [(name, value)]
    return found


@pytest.fixture(scope="module")
async def webs(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Webs]:
    async with opened_in(tmp_path_factory.mktemp("webs")) as opened:
        yield opened


async def over_http(
    webs: Webs, version: str, body: bytes, tool: str, changes: list[tuple[str, str]]
) -> tuple[Any, Any]:
    """Return the responses of both servers to a request, in a session of its own where there are any."""
    found: list[Any] = []
    for web in (webs.direct, webs.plain):
        named, session = usual(tool), "-"
        if version != VERSION:
            client = await Client.of(web, version)
            named, session = client.headers(), client.session
        found.append(whole(await post(web, body, with_changed(named, changes)), session))
    return found[0], found[1]


async def over_lines(webs: Webs, version: str, body: bytes) -> tuple[Any, Any]:
    """Return the lines of both servers about a message, after an opening and before a last request."""
    opening = [DISCOVER] if version == VERSION else [initialize(version), INITIALIZED]
    last = {"jsonrpc": "2.0", "id": "last", "method": "ping", "params": {"_meta": META}}
    if version == VERSION:
        last = {**DISCOVER, "id": "last"}
    try:
        is_request = isinstance(jsonrpc_message_adapter.validate_json(body, by_name=False), JSONRPCRequest)
    except ValueError:
        is_request = b"\\ud83d" in body
    found: list[Any] = []
    for directly in (True, False):
        async with served(webs.toolset, directly=directly) as line:
            line.write(*opening)
            assert await becomes(lambda: len(finals(line.answers())) == 1)
            line.write(body)
            assert await becomes(lambda: len(finals(line.answers())) >= 1 + is_request)
            line.write(last)
            assert await becomes(lambda: line.answers()[-1].get("id") == "last")
            text = re.sub(r'"(steps_ms|usage)": {[^}]*}', r'"\1": {}', json.dumps(line.answers()))
            found.append(json.loads(re.sub(r'"(requestState|call|call_id)": "[^"]*"', r'"\1": "..."', text)))
            webs.taken += line.taken
    return found[0], found[1]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@example("http", VERSION, ("echo", {}), [], [], None)
@example("http", "2025-11-25", ("steps", {"count": 2}), [], [], None)
@example("lines", VERSION, ("echo", {}), [], [], None)
@example("lines", "2025-06-18", ("echo", {}), [], [], None)
@given(
    st.sampled_from(("http", "lines")),
    st.sampled_from(VERSIONS),
    calls,
    few(st.tuples(members, odd)),
    few(headers),
    # One in eight.
    st.sampled_from(range(8)).flatmap(lambda number: st.none() if number else bodies),
)
async def test_answer_equals_that_of_the_sdk(
    webs: Webs,
    transport: str,
    version: str,
    call: tuple[str, Any],
    changes: list[tuple[tuple[str, ...], Any]],
    other_headers: list[tuple[str, str]],
    body: bytes | None,
) -> None:
    tool, arguments = call
    envelope = {"_meta": {**META, "progressToken": 5}} if version == VERSION else {}
    request = changed(plain(tool, arguments, params=envelope), changes)
    body = json.dumps(request).encode() if body is None else body
    webs.taken.clear()

    if transport == "http":
        ours, theirs = await over_http(webs, version, body, tool, other_headers)
    else:
        ours, theirs = await over_lines(webs, version, body)

    event(f"{transport} {'without' if webs.taken else 'by'} the SDK")
    assert ours == theirs
    # The control: a plain call is never left to the SDK. Half of a surrogate pair is for the SDK to refuse.
    is_plain = not (changes or other_headers) and b"params" in body and tool not in ("mirrored", "nothing")
    is_plain = is_plain and b"\\ud83d" not in body
    assert not is_plain or webs.taken == [tool]
