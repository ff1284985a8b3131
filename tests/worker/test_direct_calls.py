"""A call that goes directly to FastMCP's handler is answered as one that walks all in front of it.

Each case is served both ways by a server that would take either.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import fastmcp
import pytest
from direct_cases import META
from fastmcp import Context, FastMCP
from fastmcp.dependencies import Shared
from fastmcp.exceptions import ToolError
from fastmcp.server.dependencies import _is_client_tool_call, get_context, get_http_headers
from fastmcp.server.extensions import ServerExtension
from fastmcp.server.low_level import FastMCPServerMiddleware
from fastmcp.server.middleware import Middleware
from fastmcp.tools import ToolResult
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolRequestParams, ErrorData
from mcp_types.version import LATEST_MODERN_VERSION
from opentelemetry.propagate import inject
from pydantic import BaseModel, model_serializer

from runner.worker.failure_capture import FailureCapture
from runner.worker.internals.direct_calls import DirectToolCalls
from runner.worker.internals.patches import make_spans_if_recorded
from runner.worker.internals.server import lifespan, serve_raw, single_call_server
from runner.worker.remote_state import RemoteState
from runner.worker.wire import RequestFacts, WireError

pytestmark = pytest.mark.anyio

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


@pytest.fixture(autouse=True)
def no_spans() -> Iterator[None]:
    before = fastmcp.settings.telemetry_mode
    make_spans_if_recorded()
    yield
    fastmcp.settings.telemetry_mode = before


class Point(BaseModel):
    x: int
    label: str = "origin"


def everything() -> FastMCP:
    """Return a server whose tools show what a tool can see of its call, and every kind of answer."""

    @contextlib.asynccontextmanager
    async def opened(_: FastMCP) -> AsyncIterator[dict[str, str]]:
        yield {"opened": "by the lifespan"}

    server: FastMCP = FastMCP("all", lifespan=opened)
    mount(server)
    see(server)
    answer_oddly(server)
    hide(server)
    return server


def mount(server: FastMCP) -> None:
    inner: FastMCP = FastMCP("inner", middleware=[Doubled()])

    @inner.tool
    def said(text: str) -> str:
        return text

    @inner.tool
    async def within(ctx: Context) -> list[str]:
        return [ctx.fastmcp.name, str(ctx.lifespan_context)]

    server.mount(inner, namespace="in")


def see(server: FastMCP) -> None:
    @server.tool
    def adds(a: int, b: int = 1) -> int:
        return a + b

    @server.tool
    async def point(at: Point) -> Point:
        return at

    @server.tool
    async def told(ctx: Context) -> dict[str, Any]:
        carrier: dict[str, str] = {}
        inject(carrier)
        await ctx.set_state("number", 1, serializable=False)
        return {
            "session": ctx.session_id,
            "request": ctx.request_id,
            "client": ctx.client_id,
            "lifespan": dict(ctx.lifespan_context),
            "headers": get_http_headers(include_all=True),
            "own": _is_client_tool_call(),
            "state": await ctx.get_state("number"),
            "trace": carrier,
            "protocol": ctx.request_context.protocol_version if ctx.request_context else None,
        }

    @server.tool
    async def asks_another() -> list[Any]:
        @server.tool(name="late")
        async def late() -> bool:
            return _is_client_tool_call()

        answer = await server.call_tool("late", {})
        same = get_context().fastmcp is server
        return [answer.structured_content, same, _is_client_tool_call()]

    @server.tool
    async def reports(ctx: Context) -> str:
        await ctx.report_progress(1, 2, "half")
        await ctx.info("said")
        return "reported"


def answer_oddly(server: FastMCP) -> None:
    @server.tool
    def raises(how: str) -> str:
        if how == "tool":
            raise ToolError("no such day")
        if how == "protocol":
            raise MCPError.from_error_data(ErrorData(code=-32050, message="of my own", data={"at": 1}))
        raise ValueError("of the author")

    @server.tool
    def whole() -> ToolResult:
        return ToolResult(content="text", structured_content={"more": [1]}, meta={"own": True})

    @server.tool(output_schema=None)
    def loose() -> dict[str, Any]:
        return {"key": [1, None, "ä"]}


def hide(server: FastMCP) -> None:
    @server.tool(version="1")
    def versioned() -> str:
        return "one"

    @server.tool(name="versioned", version="2")
    def versioned_2() -> str:
        return "two"

    @server.tool
    def secret() -> str:
        return "hidden"

    @server.tool(auth=lambda _: False)
    def closed() -> str:
        return "never"

    server.disable(names={"secret"})


class Doubled(Middleware):
    """Of a mounted server: it is asked in either way, since the mounted server is called as it is."""

    async def on_call_tool(self, context: Any, call_next: Any) -> Any:
        if "text" in (context.message.arguments or {}):
            context.message.arguments["text"] *= 2
        return await call_next(context)


CASES: list[tuple[str, Any]] = [
    ("adds", {"a": 1}),
    ("adds", {"a": "7", "b": 2}),
    ("adds", {"a": "seven"}),
    ("adds", {}),
    ("adds", None),
    ("adds", {"a": 1, "c": 3}),
    ("point", {"at": {"x": 1}}),
    ("point", {"at": {"x": "left"}}),
    ("told", {}),
    ("asks_another", {}),
    ("versioned", {}),
    ("reports", {}),
    ("raises", {"how": "tool"}),
    ("raises", {"how": "protocol"}),
    ("raises", {"how": "other"}),
    ("whole", {}),
    ("loose", {}),
    ("secret", {}),
    ("closed", {}),
    ("unknown", {}),
    ("in_said", {"text": "ab"}),
    ("in_within", {}),
]


class Served:
    """A server, changed for a worker, and what was seen of a call of it."""

    def __init__(self, server: FastMCP) -> None:
        self.server = server
        self.watcher = FailureCapture(Path(__file__).parent)
        self.heard: list[Any] = []
        self.direct: DirectToolCalls | None = None

    async def make(self) -> "Served":
        self.server.middleware.append(self.watcher)
        await single_call_server(self.server, RemoteState(self._kept))
        self.direct = DirectToolCalls(self.server, self.watcher)
        return self

    async def answer(self, params: Any, *, direct: bool, method: str = "tools/call", **facts: Any) -> Any:
        """Return what goes to the client, what the host hears of a failure, and what was sent meanwhile."""
        self.watcher.raised, self.heard = None, []
        given = RequestFacts(**{"request_id": 7, "session_id": "s", "transport": "stdio", **facts})
        async with lifespan(self.server) as state:
            try:
                answer: Any = await serve_raw(
                    self.server._mcp_server,
                    method,
                    params,
                    given,
                    state,
                    on_notify=self._hear,
                    on_request=self._kept,
                    direct=self.direct if direct else None,
                )
            except WireError as error:
                answer = {"error": error.error}
        return answer, self.watcher.raised, self.heard

    async def _hear(self, method: str, params: Any) -> None:
        self.heard.append((method, params))

    async def _kept(self, method: str, params: Any) -> dict[str, Any]:
        del method, params
        return {"value": None}


@pytest.mark.parametrize("protocol", ["2025-06-18", "2025-11-25", LATEST_MODERN_VERSION])
@pytest.mark.parametrize("transport", ["stdio", "streamable-http"])
@pytest.mark.parametrize(("tool", "arguments"), CASES, ids=lambda value: str(value))
async def test_both_ways_answer_alike(protocol: str, transport: str, tool: str, arguments: Any) -> None:
    meta = {**(META if protocol == LATEST_MODERN_VERSION else {}), **TRACE, "progressToken": 5}
    params: dict[str, Any] = {"name": tool, "_meta": meta}
    if arguments is not None:
        params["arguments"] = arguments
    facts: dict[str, Any] = {"protocol": protocol, "transport": transport}
    if transport != "stdio":
        facts["headers"] = [["host", "localhost"], ["x-own", "1"]]
    served = await Served(everything()).make()
    assert served.direct is not None
    assert served.direct.would_pass()

    walked = await served.answer(params, direct=False, **facts)
    went = await served.answer(params, direct=True, **facts)

    assert went == walked


@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        {"name": 1},
        {"name": "adds", "arguments": [1]},
        {"name": "adds", "arguments": {"a": 1}, "_meta": {"progressToken": {}}},
        {"name": "versioned", "_meta": {"fastmcp": {"version": "1"}}},
        {"name": "versioned", "_meta": {"fastmcp": {"version": "9"}}},
        {"name": "adds", "arguments": {"a": 1}, "_meta": None},
        {"name": "adds", "arguments": {"a": 1}, "requestState": "x", "inputResponses": {}},
        {"name": "adds", "arguments": {"a": 1}, "input_responses": 5},
        {"name": "adds", "arguments": {"a": 1}, "request_state": 1},
        {"name": "adds", "arguments": {"a": 1}, "meta": 5},
    ],
    ids=str,
)
@pytest.mark.parametrize("protocol", ["2025-06-18", LATEST_MODERN_VERSION])
async def test_odd_parameters_are_told_alike(params: Any, protocol: str) -> None:
    served = await Served(everything()).make()

    walked = await served.answer(params, direct=False, protocol=protocol)
    went = await served.answer(params, direct=True, protocol=protocol)

    assert went == walked


async def test_a_server_that_masks_errors_masks_them_on_either_way() -> None:
    server: FastMCP = FastMCP("masks", mask_error_details=True)

    @server.tool
    def raises() -> str:
        raise ValueError("a secret")

    served = await Served(server).make()
    params = {"name": "raises"}

    walked = await served.answer(params, direct=False, protocol="2025-11-25")
    went = await served.answer(params, direct=True, protocol="2025-11-25")

    assert went == walked
    assert "a secret" not in str(went[0])


async def test_what_a_tool_leaves_to_be_closed_is_closed_on_either_way() -> None:
    closed: list[int] = []
    server: FastMCP = FastMCP("closes")

    @server.tool
    async def opens(ctx: Context) -> str:
        assert ctx.request_context is not None
        stack = ctx.request_context.session._connection.exit_stack
        stack.callback(closed.append, 1)
        return "open"

    served = await Served(server).make()
    for direct in (False, True):
        await served.answer({"name": "opens"}, direct=direct, protocol="2025-11-25")

    assert closed == [1, 1]


class Strict(CallToolRequestParams):
    more: int


class Equal(Middleware):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = Middleware.__hash__


class Own(ServerExtension):
    identifier = "org.example/own"


class Subclass(FastMCP):
    """Of an author."""


async def _sdk_middleware(ctx: Any, call_next: Any) -> Any:
    return await call_next(ctx)


async def _called(*_: Any, **__: Any) -> ToolResult:
    return ToolResult(content="replaced")


def _handles(server: FastMCP) -> None:
    async def handler(_ctx: Any, _params: Any) -> Any:
        return {"content": []}

    kind = server._mcp_server.get_request_handler("tools/call").params_type  # type: ignore[union-attr]
    server._mcp_server.add_request_handler("tools/call", kind, handler)


LATER: dict[str, Callable[[FastMCP, pytest.MonkeyPatch], object]] = {
    "middleware": lambda server, _: server.add_middleware(Doubled()),
    "middleware of the SDK": lambda server, _: server._mcp_server.middleware.append(_sdk_middleware),
    "an extension": lambda server, _: server.add_extension(Own()),
    "a method of the server": lambda server, patch: patch.setattr(server, "call_tool", _called),
    "a method of all servers": lambda _, patch: patch.setattr(FastMCP, "call_tool", _called),
    "a chain that is instrumented": lambda _, patch: patch.setattr(
        FastMCPServerMiddleware, "__call__", _sdk_middleware
    ),
    "a handler": lambda server, _: _handles(server),
    "a handler of other parameters": lambda server, _: server._mcp_server.add_request_handler(
        "tools/call", Strict, server._on_call_tool
    ),
    "middleware that equals anything": lambda server, _: server.middleware.__setitem__(0, Equal()),
    "what all middleware is": lambda _, patch: patch.setattr(Middleware, "on_message", _sdk_middleware),
    "code in place": lambda _, patch: patch.setattr(FastMCP._run_middleware, "__code__", _called.__code__),
    "a method of FastMCP's own middleware": lambda server, patch: patch.setattr(
        server.middleware[0], "on_call_tool", _called, raising=False
    ),
    "no list of middleware": lambda server, _: setattr(server, "middleware", None),
    "spans": lambda _, patch: patch.setattr(fastmcp.settings, "telemetry_mode", "native"),
}


@pytest.mark.parametrize("what", LATER)
async def test_what_an_author_puts_in_front_later_is_walked(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: FastMCP = FastMCP("plain")
    served = await Served(server).make()
    assert served.direct is not None
    assert served.direct.would_pass()

    LATER[what](server, monkeypatch)

    assert not served.direct.would_pass()


async def test_middleware_of_the_author_is_asked_though_a_call_could_go_directly() -> None:
    server: FastMCP = FastMCP("own")

    @server.tool
    def echo(text: str) -> str:
        return text

    served = await Served(server).make()
    params = {"name": "echo", "arguments": {"text": "ab"}}
    before, *_ = await served.answer(params, direct=True, protocol="2025-11-25")
    server.add_middleware(Doubled())
    after, *_ = await served.answer(params, direct=True, protocol="2025-11-25")

    assert before["structuredContent"] == {"result": "ab"}
    assert after["structuredContent"] == {"result": "abab"}


CLOSED: list[Any] = []


@contextlib.asynccontextmanager
async def database() -> AsyncIterator[str]:
    """Open what is shared by the calls of a server, and note in which way it was closed."""
    carrier: dict[str, str] = {}
    try:
        yield "open"
    except BaseException as error:
        CLOSED.append(type(error).__name__)
        raise
    inject(carrier)
    CLOSED.append(carrier)


class Told(BaseModel):
    """Looks around while it is written."""

    @model_serializer
    def told(self) -> dict[str, Any]:
        carrier: dict[str, str] = {}
        inject(carrier)
        return {"headers": get_http_headers(include_all=True), "trace": carrier}


def sharing() -> FastMCP:
    server: FastMCP = FastMCP("shares")

    @server.tool
    async def ends(how: str, shared: str = Shared(database)) -> ToolResult:
        if how == "exits":
            raise SystemExit(3)
        if how == "fails":
            raise ValueError("of the author")
        return ToolResult(content=shared * (1000 if how == "is too long" else 1), meta={"own": Told()})

    return server


@pytest.mark.parametrize("how", ["answers", "exits", "fails", "is too long"])
async def test_what_calls_share_is_closed_and_results_are_written_in_the_contexts_of_the_call(
    how: str,
) -> None:
    served = await Served(sharing()).make()
    served.watcher.most_bytes = 2000
    params = {"name": "ends", "arguments": {"how": how}, "_meta": TRACE}
    facts: dict[str, Any] = {"transport": "streamable-http", "headers": [["x-own", "1"]]}
    seen = []
    for direct in (False, True):
        CLOSED.clear()
        answer = await served.answer(params, direct=direct, protocol="2025-11-25", **facts)
        seen.append((answer, list(CLOSED)))

    assert seen[0] == seen[1]
    assert seen[0][1], "nothing was closed"
    if how == "answers":
        assert seen[0][0][0]["_meta"]["own"] == {"headers": {"x-own": "1"}, "trace": TRACE}


async def test_a_tool_that_takes_the_stack_of_its_connection_away_is_answered() -> None:
    server: FastMCP = FastMCP("takes")

    @server.tool
    async def takes(ctx: Context) -> str:
        assert ctx.request_context is not None
        ctx.request_context.session._connection.exit_stack = None  # type: ignore[assignment]
        return "taken"

    served = await Served(server).make()

    for direct in (False, True):
        answer, *_ = await served.answer({"name": "takes"}, direct=direct, protocol="2025-11-25")
        assert answer["structuredContent"] == {"result": "taken"}


@pytest.mark.parametrize(
    "made",
    [lambda: Subclass("sub"), lambda: FastMCP("own", middleware=[Doubled()])],
    ids=["subclass", "middleware"],
)
async def test_servers_that_are_not_plain_are_walked(made: Callable[[], FastMCP]) -> None:
    served = await Served(made()).make()

    assert served.direct is not None
    assert not served.direct.would_pass()
