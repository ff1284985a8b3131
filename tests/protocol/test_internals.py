"""Meaning of the private names of FastMCP and the SDK that we use: a test fails if one changes.

A name that is gone fails at once, anywhere. Here is what would go wrong without a sound, one thing at a time
and in this process. `test_same_answers.py` compares the answers to calls.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

import anyio
import httpx2
import pytest
from fastmcp import Context, FastMCP
from fastmcp.server.dependencies import get_access_token, get_http_headers, get_http_request
from fastmcp.server.extensions import ServerExtension
from fastmcp.utilities.tasks import TaskConfig
from fastmcp.utilities.types import get_cached_typeadapter
from mcp import ClientSession
from mcp.server.connection import Connection
from mcp.server.request_state import RequestStateBoundary
from mcp.shared.dispatcher import CallOptions
from mcp.shared.memory import create_client_server_memory_streams
from mcp_requests import META, VERSION, modern, usual
from mcp_types import ClientCapabilities, RootsCapability, ServerCapabilities

from runner.protocol.internals.connection import (
    connection_facts,
    connection_levels,
    connection_of,
    direct_facts,
    is_ready,
    message_levels,
    notify_client,
    request_client,
    session_of,
)
from runner.protocol.internals.host import relay_innermost, serve_streams, use_input_schemas
from runner.protocol.internals.proxy import (
    HttpAnswer,
    Peer,
    RelayingSession,
    ask_remote,
    learn_tools,
    tell_remote,
)
from runner.worker.internals.low_level import low_level
from runner.worker.internals.server import (
    capabilities,
    inner_provider,
    lifespan,
    serve_raw,
    single_call_server,
    warm_type_adapters,
)
from runner.worker.wire import RequestFacts

pytestmark = pytest.mark.anyio


async def passed_on(ctx: Any, call_next: Any) -> Any:
    """Go around a request and change nothing."""
    return await call_next(ctx)


class Store:
    """Session state of a host, which a worker requests."""

    def __init__(self) -> None:
        self.items: dict[tuple[str, str], dict[str, Any]] = {}

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        place = (params["collection"], params["key"])
        if method == "state/put":
            self.items[place] = params["value"]
        return {"value": self.items.get(place)}


# ---------------------------------------------------------------- worker


async def unheard(_method: str, _params: Mapping[str, Any] | None) -> None:
    return None


async def unasked(method: str, _params: Mapping[str, Any] | None) -> dict[str, Any]:
    raise AssertionError(f"nobody is asked for {method}")


async def served(
    server: FastMCP, tool: str, session: str = "s", arguments: dict[str, Any] | None = None, **facts: Any
) -> Any:
    """Let a tool answer as in a worker; return what it returned."""
    params = {"name": tool, "arguments": arguments or {}, "_meta": META}
    request_facts = RequestFacts(
        **{"request_id": 1, "protocol": VERSION, "session_id": session, "transport": "stdio", **facts}
    )
    answer = await serve_raw(
        low_level(server), "tools/call", params, request_facts, {}, on_notify=unheard, on_request=unasked
    )
    return answer["structuredContent"].get("result", answer["structuredContent"])


async def test_provider_found_inside_all_wrappers() -> None:
    server, inner = FastMCP("outer"), FastMCP("inner")
    server.mount(inner, namespace="within")
    wrapper = server.providers[-1]

    found = inner_provider(wrapper)

    assert found is not wrapper
    assert found.server is inner  # type: ignore[attr-defined]


async def test_worker_does_not_seal_what_host_seals() -> None:
    server = FastMCP("sealed")
    before = [type(item) for item in low_level(server).middleware]

    await single_call_server(server, unasked)

    after = [type(item) for item in low_level(server).middleware]
    assert RequestStateBoundary in before
    assert after == [kind for kind in before if kind is not RequestStateBoundary]


async def test_worker_runs_every_tool_in_foreground() -> None:
    server = FastMCP("tasks")

    @server.tool
    def slow() -> str:
        return "slow"

    tool = await server.get_tool("slow")
    assert tool is not None
    tool.task_config = TaskConfig(mode="optional")

    await single_call_server(server, unasked)

    served_tool = await server.get_tool("slow")
    assert served_tool is not None
    assert served_tool.task_config.mode == "forbidden"


async def test_worker_has_no_extensions_of_its_server() -> None:
    class Own(ServerExtension):
        identifier = "org.example/own"

    server = FastMCP("extended")
    server.add_extension(Own())
    before = low_level(server).get_capabilities().extensions

    await single_call_server(server, unasked)

    assert "org.example/own" in (before or {})
    assert "org.example/own" not in (low_level(server).get_capabilities().extensions or {})


async def test_session_state_kept_in_given_store_under_given_session() -> None:
    server, store = FastMCP("state"), Store()

    @server.tool
    async def remember(ctx: Context) -> str:
        await ctx.set_state("key", ctx.session_id)
        return str(await ctx.get_state("key"))

    await single_call_server(server, store.ask)
    replies = [await served(server, "remember", session) for session in ("one", "two")]

    assert replies == ["one", "two"]
    assert {key for _, key in store.items} == {"one:key", "two:key"}


async def test_mounted_servers_keep_separate_state() -> None:
    outer, inner, innermost, store = FastMCP("outer"), FastMCP("inner"), FastMCP("innermost"), Store()

    async def remember(ctx: Context, value: str | None = None) -> str:
        if value is not None:
            await ctx.set_state("key", value)
        return str(await ctx.get_state("key"))

    for server in (outer, inner, innermost):
        server.tool(remember)
    inner.mount(innermost, namespace="most")
    outer.mount(inner, namespace="in")
    await single_call_server(outer, store.ask)

    names = ("remember", "in_remember", "in_most_remember")
    stores = [await served(outer, name, "one", {"value": name}) for name in names]
    values = [await served(outer, name, "one") for name in names]

    assert stores == values == list(names)
    assert len(store.items) == 3
    assert await served(outer, "in_remember", "two") == "None"


def test_facts_have_query_and_client_but_no_cookie() -> None:
    headers = [(b"x-own", b"yes"), (b"cookie", b"key")]
    scope = {"headers": headers, "query_string": b"tenant=acme", "client": ("192.0.2.1", 5000)}
    connection = Connection.from_envelope(VERSION, None, None)

    direct = direct_facts(scope, 1, {"_meta": META}, None)
    of_sdk = connection_facts(connection, scope, 1, None, can_ask=True)

    for facts in (direct, of_sdk):
        assert facts.headers == [("x-own", "yes")]
        assert (facts.query, facts.peer) == ("tenant=acme", ("192.0.2.1", 5000))


async def test_tool_sees_facts_of_its_http_request() -> None:
    server = FastMCP("facts")

    @server.tool
    def seen() -> dict[str, Any]:
        token = get_access_token()
        request = get_http_request()
        return {
            "claims": token.claims if token else None,
            "own": get_http_headers().get("x-own"),
            "query": dict(request.query_params),
            "client": request.client and request.client.host,
        }

    await single_call_server(server, unasked)
    token = {"token": "t", "client_id": "c", "scopes": [], "claims": {"sub": "alice"}}
    answer = await served(
        server,
        "seen",
        transport="streamable-http",
        token=token,
        headers=[("x-own", "yes")],
        query="tenant=acme&key=%C3%BC",
        peer=["192.0.2.1", 5000],
    )

    assert answer == {
        "claims": {"sub": "alice"},
        "own": "yes",
        "query": {"tenant": "acme", "key": "ü"},
        "client": "192.0.2.1",
    }


async def test_first_call_reuses_prebuilt_validators() -> None:
    server = FastMCP("warm")

    @server.tool
    def plain(number: int = 1, ctx: Context | None = None) -> int:
        return number

    await single_call_server(server, unasked)
    before = get_cached_typeadapter.cache_info().misses
    await warm_type_adapters(server)
    warmed = get_cached_typeadapter.cache_info().misses
    await served(server, "plain")

    assert warmed > before
    assert get_cached_typeadapter.cache_info().misses == warmed


async def test_lifespans_of_server_and_mounts_are_entered() -> None:
    entered = []

    def noting(name: str) -> Any:
        @contextlib.asynccontextmanager
        async def own(_server: FastMCP) -> AsyncIterator[dict[str, Any]]:
            entered.append(name)
            yield {"state": name}

        return own

    server = FastMCP("outer", lifespan=noting("outer"))
    server.mount(FastMCP("inner", lifespan=noting("inner")))

    async with lifespan(FastMCP("plain")) as nothing, lifespan(server) as state:
        pass

    assert (nothing, state) == ({}, {"state": "outer"})
    assert entered == ["outer", "inner"]


async def test_server_announces_its_capabilities() -> None:
    assert ServerCapabilities.model_validate(capabilities(FastMCP("able"))).tools is not None


# ---------------------------------------------------------------- host


@contextlib.asynccontextmanager
async def connected(
    app: FastMCP, kind: Callable[..., ClientSession] = ClientSession, **more: Any
) -> AsyncIterator[ClientSession]:
    """Serve a client over streams in memory."""
    async with (
        create_client_server_memory_streams() as (ours, theirs),
        anyio.create_task_group() as group,
    ):
        group.start_soon(serve_streams, app, *theirs)
        async with kind(*ours, **more) as session:
            yield session
        group.cancel_scope.cancel()


class Noting(Peer):
    """The owner of a session, which notes what the server sends."""

    def __init__(self) -> None:
        self.notices: list[tuple[str, Mapping[str, Any] | None]] = []

    def capabilities(self, version: str) -> ClientCapabilities:
        return ClientCapabilities(roots=RootsCapability())

    async def on_request(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        return {"method": method, "params": params}

    async def on_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        self.notices.append((method, params))


async def raw(client: ClientSession, method: str, params: dict[str, Any]) -> dict[str, Any]:
    return await ask_remote(client, method, params, timeout_s=60, progress=None, http=HttpAnswer())


async def test_session_without_id_keeps_assigned_one() -> None:
    app, seen = FastMCP("host"), []

    async def relay(ctx: Any, call_next: Any) -> Any:
        if ctx.method == "prompts/list":
            seen.append(session_of(connection_of(ctx), None if ctx.request is None else ctx.request.scope))
        return await call_next(ctx)

    relay_innermost(app, relay, around=passed_on)
    for _ in range(2):
        async with connected(app) as client:
            await client.initialize()
            await client.list_prompts()
            await client.list_prompts()

    assert seen[0] == seen[1] != seen[2] == seen[3]


async def test_connection_ready_after_handshake() -> None:
    app, ready = FastMCP("host"), {}

    async def relay(ctx: Any, call_next: Any) -> Any:
        ready[ctx.method] = is_ready(ctx)
        return await call_next(ctx)

    relay_innermost(app, relay, around=passed_on)
    async with connected(app) as client:
        await client.initialize()
        await client.list_prompts()

    assert (ready["initialize"], ready["prompts/list"]) == (False, True)


async def test_client_gets_messages_from_its_level_on() -> None:
    app, levels = FastMCP("host"), []

    async def relay(ctx: Any, call_next: Any) -> Any:
        if ctx.method == "prompts/list":
            levels.append(message_levels(ctx))
            levels.append(connection_levels(connection_of(ctx)))
        return await call_next(ctx)

    relay_innermost(app, relay, around=passed_on)
    async with connected(app) as client:
        await client.initialize()
        await client.list_prompts()
        await raw(client, "logging/setLevel", {"level": "critical"})
        await client.list_prompts()

    assert levels[0] == levels[1] > levels[2] == levels[3] == {"critical", "alert", "emergency"}


async def test_client_notified_and_asked_during_its_request() -> None:
    app, answers = FastMCP("host"), []

    async def relay(ctx: Any, call_next: Any) -> Any:
        if ctx.method == "prompts/list":
            await notify_client(ctx, "notifications/own", {"a": 1})
            answers.append(await request_client(ctx, "own/request", {"b": 2}))
        return await call_next(ctx)

    relay_innermost(app, relay, around=passed_on)
    peer = Noting()
    async with connected(app, partial(RelayingSession, peer)) as client:
        await client.initialize()
        await client.list_prompts()

    assert peer.notices == [("notifications/own", {"a": 1})]
    assert answers == [{"method": "own/request", "params": {"b": 2}}]


async def test_relayed_middleware_runs_innermost() -> None:
    app = FastMCP("host")

    async def relay(ctx: Any, call_next: Any) -> Any:
        return await call_next(ctx)

    relay_innermost(app, relay, around=passed_on)

    assert low_level(app).middleware[-1] is relay
    assert len(low_level(app).middleware) > 1


async def test_http_call_requests_one_schema_not_all_tools() -> None:
    app, methods, requests = FastMCP("host"), [], []

    @app.tool
    def own() -> str:
        return "own"

    async def relay(ctx: Any, call_next: Any) -> Any:
        methods.append(ctx.method)
        return await call_next(ctx)

    def schema(tool: str) -> Mapping[str, Any] | None:
        requests.append(tool)
        return {"type": "object"}

    relay_innermost(app, relay, around=passed_on)
    use_input_schemas(app, schema)
    web = app.http_app()
    async with (
        web.router.lifespan_context(web),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(web), base_url="http://127.0.0.1:8000") as client,
    ):
        answer = await client.post("/mcp", json=modern("own"), headers=usual("own", mcp_param_x="1"))

    assert answer.json()["result"]["structuredContent"] == {"result": "own"}
    assert (requests, methods) == (["own"], ["tools/call"])


async def test_host_on_streams_has_entered_its_lifespan() -> None:
    entered = []

    @contextlib.asynccontextmanager
    async def own(_server: FastMCP) -> AsyncIterator[dict[str, Any]]:
        entered.append("own")
        yield {}

    async with connected(FastMCP("host", lifespan=own)) as client:
        await client.initialize()

    assert entered == ["own"]


# ---------------------------------------------------------------- proxy


class Remote:
    """A connection to a server, of which only what is sent is looked at. A `Dispatcher` of the SDK."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any], CallOptions]] = []
        self.notices: list[tuple[str, Mapping[str, Any] | None]] = []
        self.callbacks: Any = None

    async def run(self, on_request: Any, on_notify: Any, *_more: Any, task_status: Any) -> None:
        self.callbacks = on_request, on_notify
        task_status.started()
        await anyio.sleep_forever()

    async def send_raw_request(self, method: str, params: Any, opts: Any = None) -> dict[str, Any]:
        self.sent.append((method, params, opts))
        return {
            "supportedVersions": [VERSION],
            "capabilities": {},
            "serverInfo": {"name": "r", "version": "1"},
            "resultType": "complete",
            "own": 1,
        }

    async def notify(self, method: str, params: Any, opts: Any = None) -> None:
        self.notices.append((method, params))


async def test_proxy_session_relays_client_capabilities_and_messages() -> None:
    remote, peer = Remote(), Noting()

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        return None

    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    async with RelayingSession(peer, dispatcher=remote) as session:
        await session.discover()
        learn_tools(session, {"tools": [{"name": "own", "inputSchema": schema}]})
        params = {"name": "own", "arguments": {"region": "here"}}
        result = await ask_remote(
            session, "tools/call", params, timeout_s=5, progress=progress, http=HttpAnswer()
        )
        await tell_remote(session, "notifications/own", {"a": 1})
        on_request, on_notify = remote.callbacks
        assert (await on_request(None, "own/request", {"b": 2}))["params"] == {"b": 2}
        await on_notify(None, "notifications/other", {"c": 3})

    method, sent, options = remote.sent[-1]
    meta = sent["_meta"]
    assert (method, result["own"]) == ("tools/call", 1)
    assert meta["io.modelcontextprotocol/clientCapabilities"] == {"roots": {}}
    assert meta["io.modelcontextprotocol/protocolVersion"] == VERSION
    assert options["headers"]["mcp-name"] == "own"
    assert options["headers"]["Mcp-Param-Region"] == "here"
    assert (options["timeout"], options["on_progress"]) == (5, progress)
    notified, parameters = remote.notices[-1]
    assert (notified, parameters and parameters["a"]) == ("notifications/own", 1)
    assert peer.notices == [("notifications/other", {"c": 3})]
