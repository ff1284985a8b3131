"""The official everything-server behind the proxy: all that it offers works, in each era and over each way.

Source: `docs/output-guard.md`.
"""

import asyncio
import json
import os
import re
import subprocess
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import mcp_types
import pytest
from everything import BLOB, SERVER, TEXT, Person, node, words
from fastmcp import Client
from fastmcp.client.transports import FastMCPTransport, StdioTransport
from fastmcp.client.transports.base import TransportOptions
from mcp.client.subscriptions import listen
from mcp.server.subscriptions import ResourcesListChanged, ResourceUpdated
from mcp.shared.exceptions import MCPError
from ports import free_port
from proxying import RawSession, over_http, upstreams_for
from support import stop

from runner.protocol.artifact_tools import READING
from runner.protocol.internals.proxy import Peer, RelayingSession
from runner.proxy.server import make_proxy
from runner.proxy.targets import Target

HANDSHAKE = pytest.mark.parametrize(
    "combination", ["stdio legacy", "http legacy"], indirect=True, scope="module"
)
"""For what later eras do not have: messages outside of requests, roots that change, tasks in the core."""

pytestmark = [
    pytest.mark.needs_npm,
    pytest.mark.anyio,
    pytest.mark.kernel,
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]


@pytest.fixture(scope="module")
def everything_url() -> Any:
    port = free_port()
    environment = {"PATH": os.environ["PATH"], "PORT": str(port)}
    process = subprocess.Popen(
        [node(), str(SERVER), "streamableHttp"],
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    assert "listening on port" in line, line + process.stderr.read()
    yield f"http://127.0.0.1:{port}/mcp"
    stop(process)


@dataclass
class Stand:
    """The server itself, and a proxy before it, each with a client that can be asked everything."""

    direct: Any
    behind: Any
    person: Person
    app: Any


@pytest.fixture(scope="module", params=["stdio legacy", "stdio auto", "http legacy", "http auto"])
def combination(request: pytest.FixtureRequest) -> tuple[str, str]:
    transport, _, mode = request.param.partition(" ")
    return transport, mode


@pytest.fixture(scope="module")
async def stand(
    combination: tuple[str, str], everything_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stand]:
    transport, mode = combination
    folder, user = tmp_path_factory.mktemp("everything"), f"t-{uuid.uuid4().hex[:12]}"
    folder.chmod(0o700)
    itself: Any = everything_url
    target = over_http(everything_url, "everything")
    if transport == "stdio":
        itself = StdioTransport(node(), [str(SERVER), "stdio"], keep_alive=False)
        target = Target(name="everything", command=(node(), str(SERVER), "stdio"), folder=folder)
    person = Person()
    async with AsyncExitStack() as stack:
        direct = await stack.enter_async_context(Client(itself, mode="legacy", **Person().options()))
        upstreams = await stack.enter_async_context(upstreams_for(folder, user, target))
        app = make_proxy(upstreams, transport="stdio")
        behind = await stack.enter_async_context(Client(app, mode=mode, **person.options()))
        yield Stand(direct, behind, person, app)


def plain(called: Any) -> Any:
    """A result without what differs from call to call: times of day, and how an era marks its results."""
    dumped = json.dumps(called.model_dump(mode="json", by_alias=True, exclude={"meta"}, exclude_none=True))
    return json.loads(re.sub(r"\d+:\d\d:\d\d( [AP]M)?", "TIME", dumped))


def links(called: Any) -> list[Any]:
    return [
        (block.mime_type, str(block.uri)[:11]) for block in called.content if block.type == "resource_link"
    ]


Check = Callable[[Any, Any], None]


def same(behind: Any, direct: Any) -> None:
    assert plain(behind) == plain(direct)


def says(*wanted: str) -> Check:
    def check(behind: Any, direct: Any) -> None:
        for word in wanted:
            assert word in words(behind)
            assert word in words(direct)

    return check


def linked(mime: str) -> Check:
    """Bytes of the direct result are a reference behind the proxy, and nothing else differs."""

    def check(behind: Any, direct: Any) -> None:
        assert (mime, "artifact://") in links(behind)
        assert words(behind) == words(direct)
        assert "base64" not in behind.model_dump_json()
        assert len(behind.content) == len(direct.content)

    return check


def refused(behind: Any, direct: Any) -> None:
    assert behind.is_error
    assert words(behind) == words(direct)


PLAIN = "data:text/plain;base64,aGVsbG8gd29ybGQ="

TABLE: dict[str, list[tuple[dict[str, Any], Check]]] = {
    "echo": [({"message": "hello"}, same), ({"message": 3}, refused)],
    "get-annotated-message": [
        ({"messageType": "error"}, same),
        ({"messageType": "success", "includeImage": True}, linked("image/png")),
    ],
    "get-env": [({}, says("PATH"))],
    "get-resource-links": [({"count": 4}, same)],
    "get-resource-reference": [
        ({"resourceType": "Text", "resourceId": 1}, same),
        ({"resourceType": "Blob", "resourceId": 2}, linked("text/plain")),
        ({"resourceType": "Text", "resourceId": -1}, refused),
    ],
    "get-roots-list": [({}, says("file:///projects/one", "1 total"))],
    "get-structured-content": [({"location": "Chicago"}, same)],
    "get-sum": [({"a": 1.5, "b": 2}, same)],
    "get-tiny-image": [({}, linked("image/png"))],
    "gzip-file-as-resource": [
        ({"name": "a.gz", "data": PLAIN, "outputType": "resource"}, linked("application/gzip")),
        ({"name": "b.gz", "data": PLAIN, "outputType": "resourceLink"}, same),
    ],
    "simulate-research-query": [({"topic": "bees"}, refused)],
    "toggle-simulated-logging": [({}, says("Started")), ({}, says("Stopped"))],
    "toggle-subscriber-updates": [({}, says("Started")), ({}, says("Stopped"))],
    "trigger-elicitation-request": [({}, says("User provided the requested information", "Ann"))],
    "trigger-long-running-operation": [({"duration": 0.2, "steps": 2}, same)],
    "trigger-sampling-request": [
        ({"prompt": "bees", "maxTokens": 5}, says("sampled from Resource trigger-sampling-request context"))
    ],
    "trigger-url-elicitation": [
        ({"url": "https://host.example/", "elicitationId": "e1"}, says("User completed the URL elicitation"))
    ],
}


async def test_tools_offered_as_by_server(stand: Stand) -> None:
    async def listed(client: Any) -> list[Any]:
        answer = await client.list_tools_mcp()
        return [tool.model_dump(by_alias=True) for tool in answer.tools if tool.name not in READING]

    offered = await listed(stand.behind)

    assert offered == await listed(stand.direct)
    assert {tool["name"] for tool in offered} == TABLE.keys()


@pytest.mark.parametrize("tool", sorted(TABLE))
async def test_tools_all_work_through_proxy(stand: Stand, tool: str) -> None:
    for arguments, check in TABLE[tool]:
        behind, direct = [
            await client.call_tool(tool, arguments, raise_on_error=False)
            if tool.startswith("trigger")
            else await client.call_tool_mcp(tool, arguments)
            for client in (stand.behind, stand.direct)
        ]

        check(_wire(behind), _wire(direct))


def _wire(called: Any) -> Any:
    if isinstance(called, mcp_types.CallToolResult):
        return called
    return mcp_types.CallToolResult(content=called.content, is_error=called.is_error)


async def test_prompts_and_completions_come_from_upstream(stand: Stand) -> None:
    """S4-11: what a prompt embeds stays as it is."""

    async def seen(client: Any) -> list[Any]:
        reference = mcp_types.PromptReference(type="ref/prompt", name="completable-prompt")
        template = mcp_types.ResourceTemplateReference(
            type="ref/resource", uri="demo://resource/dynamic/text/{resourceId}"
        )
        return [
            [prompt.model_dump() for prompt in await client.list_prompts()],
            plain(await client.get_prompt("simple-prompt")),
            plain(await client.get_prompt("args-prompt", {"city": "Rome", "state": "Lazio"})),
            plain(await client.get_prompt("completable-prompt", {"department": "Sales", "name": "Eve"})),
            plain(await client.get_prompt("resource-prompt", {"resourceType": "Text", "resourceId": "2"})),
            (
                await client.session.complete(
                    reference, {"name": "name", "value": "E"}, {"department": "Sales"}
                )
            ).completion.model_dump(),
            (await client.session.complete(template, {"name": "resourceId", "value": "7"})).completion.values,
        ]

    behind = await seen(stand.behind)

    assert behind == await seen(stand.direct)
    assert behind[5]["values"] == ["Eve"]
    assert behind[6] == ["7"]


async def test_upstream_resources_and_templates_listed_before_ours(stand: Stand) -> None:
    """S4-12, S4-81: lists and reads."""

    async def seen(client: Any) -> list[Any]:
        return [
            [item.model_dump() for item in await client.list_resources() if "session" not in str(item.uri)],
            [item.model_dump() for item in await client.list_resource_templates()],
            plain_contents(await client.read_resource(TEXT)),
            [item.uri for item in await client.read_resource(BLOB)],
            plain_contents(await client.read_resource("demo://resource/static/document/architecture.md")),
        ]

    behind, direct = await seen(stand.behind), await seen(stand.direct)

    assert behind[0] == direct[0]
    assert behind[1][: len(direct[1])] == direct[1]
    assert [item["uri_template"] for item in behind[1][len(direct[1]) :]] == [
        "artifact://{id}{?offset,length}"
    ]
    assert behind[2:] == direct[2:]


def plain_contents(contents: list[Any]) -> Any:
    return [re.sub(r"\d+:\d\d:\d\d( [AP]M)?", "TIME", item.model_dump_json()) for item in contents]


async def test_missing_resource_returns_servers_own_refusal(stand: Stand) -> None:
    refusals = []
    for client in (stand.behind, stand.direct):
        with pytest.raises(MCPError) as refused:
            await client.read_resource("demo://nowhere/1")
        refusals.append((refused.value.error.code, refused.value.error.message))

    assert refusals[0] == refusals[1]


async def test_session_file_link_read_through_proxy(stand: Stand) -> None:
    """S4-11: the link stays, and reading it gives the server's bytes."""
    arguments = {"name": "session.gz", "data": PLAIN, "outputType": "resourceLink"}

    called = await stand.behind.call_tool_mcp("gzip-file-as-resource", arguments)
    read = await stand.behind.read_resource(str(called.content[0].uri))

    assert read[0].mime_type == "application/gzip"
    assert read[0].blob.startswith("H4sI")


async def test_large_and_binary_outputs_become_readable_references(stand: Stand) -> None:
    """S4-74, S4-88: neither floods a model."""
    long = "".join(f"row {n} of many\n" for n in range(20_000))

    text = await stand.behind.call_tool_mcp("echo", {"message": long})
    picture = await stand.behind.call_tool_mcp("get-tiny-image", {})

    reference = json.loads(text.content[0].text)["artifact"]
    part = await stand.behind.call_tool(
        "artifact_read", {"id": reference["id"], "first_line": 11, "lines": 1}
    )
    image = next(block for block in picture.content if block.type == "resource_link")
    fetched = await stand.behind.read_resource(str(image.uri))
    assert len(text.model_dump_json()) < 5_000
    assert (
        part.structured_content["text"] == "row 10 of many\n" or "row 10 " in part.structured_content["text"]
    )
    assert fetched[0].blob.startswith("iVBORw0KGgo")


async def test_progress_of_long_operation_arrives_step_by_step(stand: Stand) -> None:
    steps: list[Any] = []

    async def progress(*report: Any) -> None:
        steps.append(report[:2])

    await stand.behind.call_tool(
        "trigger-long-running-operation", {"duration": 0.3, "steps": 3}, progress_handler=progress
    )

    assert steps == [(1.0, 3.0), (2.0, 3.0), (3.0, 3.0)]


async def test_cancelled_call_leaves_server_working(stand: Stand) -> None:
    started = asyncio.Event()

    async def progress(*_report: Any) -> None:
        started.set()

    call = asyncio.create_task(
        stand.behind.call_tool(
            "trigger-long-running-operation", {"duration": 300, "steps": 3000}, progress_handler=progress
        )
    )
    await started.wait()
    call.cancel()
    await asyncio.wait({call})

    assert call.cancelled()
    assert words(await stand.behind.call_tool_mcp("echo", {"message": "still there"})) == "Echo: still there"


async def test_subscribers_alone_notified_of_changes(stand: Stand, combination: tuple[str, str]) -> None:
    """S4-37 and S4-93: in the protocol's way of either era."""
    subscribed, other = "demo://resource/dynamic/text/11", "demo://resource/dynamic/text/12"

    async def toggle() -> None:
        await stand.behind.call_tool("toggle-subscriber-updates")

    if combination[1] == "legacy":
        await stand.behind.session.subscribe_resource(subscribed)
        await toggle()
        update = await stand.person.until(
            lambda what, params: what.endswith("resources/updated") and str(params.uri) == subscribed
        )
        await stand.behind.session.unsubscribe_resource(subscribed)
        await toggle()
        updates = [params for what, params in stand.person.received if what.endswith("resources/updated")]
        uris = {str(params.uri) for params in updates}
        assert str(update.uri) == subscribed
    else:
        async with listen(stand.behind.session, resource_subscriptions=[subscribed]) as events:
            await toggle()
            event = await anext(events)
            await toggle()
        assert isinstance(event, ResourceUpdated)
        uris = {str(event.uri)}

    assert other not in uris
    assert subscribed in uris


async def test_changed_list_is_announced(stand: Stand, combination: tuple[str, str]) -> None:
    arguments = {"name": f"new-{uuid.uuid4().hex}.gz", "data": PLAIN, "outputType": "resourceLink"}

    if combination[1] == "legacy":
        await stand.behind.call_tool("gzip-file-as-resource", arguments)
        await stand.person.until(lambda what, _params: what == "notifications/resources/list_changed")
    else:
        async with listen(stand.behind.session, resources_list_changed=True) as events:
            await stand.behind.call_tool("gzip-file-as-resource", arguments)
            event = await anext(events)
        assert event == ResourcesListChanged()

    assert arguments["name"] in [item.name for item in await stand.behind.list_resources()]


@HANDSHAKE
async def test_messages_arrive_between_calls(stand: Stand) -> None:
    await stand.behind.set_logging_level("debug")
    await stand.behind.session.subscribe_resource(TEXT)

    message = await stand.person.until(
        lambda what, data: what == "log" and "Received Subscribe Resource request" in str(data)
    )
    await stand.behind.session.unsubscribe_resource(TEXT)
    assert TEXT in str(message)


@HANDSHAKE
async def test_changed_roots_requested_again(stand: Stand) -> None:
    await stand.behind.call_tool("get-roots-list")

    stand.person.roots.append("file:///projects/two")
    await stand.behind.send_roots_list_changed()

    await stand.person.until(lambda what, data: what == "log" and "2 root(s)" in str(data))
    listed = words(await stand.behind.call_tool("get-roots-list"))
    stand.person.roots.pop()
    stand.person.received.clear()
    await stand.behind.send_roots_list_changed()
    await stand.person.until(lambda what, data: what == "log" and "1 root(s)" in str(data))
    assert "file:///projects/two" in listed


@dataclass
class Worker(Peer):
    """A client of the handshake era that answers each request by a task."""

    results: dict[str, dict[str, Any]] = field(default_factory=dict)

    def capabilities(self, version: str) -> mcp_types.ClientCapabilities:
        return mcp_types.ClientCapabilities.model_validate(
            {
                "sampling": {},
                "elicitation": {"form": {}},
                "tasks": {"requests": {"sampling": {"createMessage": {}}, "elicitation": {"create": {}}}},
            }
        )

    async def on_request(self, method: str, params: Any) -> dict[str, Any]:
        arguments = dict(params or {})
        task = str(arguments.get("taskId") or uuid.uuid4())
        about = {"taskId": task, "status": "completed", "ttl": 60_000, "createdAt": "2026-01-01T00:00:00Z"}
        about["lastUpdatedAt"] = about["createdAt"]
        match method:
            case "sampling/createMessage" | "elicitation/create" if "task" in arguments:
                content = {"type": "text", "text": "done later"}
                sampled = {"role": "assistant", "model": "m", "content": content}
                elicited = {"action": "accept", "content": {"name": "Ann"}}
                self.results[task] = sampled if method.startswith("sampling") else elicited
                return {"task": {**about, "status": "working"}}
            case "elicitation/create":
                return {"action": "accept", "content": {"interpretation": "snake"}}
            case "tasks/get":
                return about
            case "tasks/result":
                return self.results[task]
        raise MCPError(code=mcp_types.METHOD_NOT_FOUND, message=method)


class InProcess(FastMCPTransport):
    """A transport to an application of this process, for sessions of a worker."""

    @asynccontextmanager
    async def connect_session(self, **more: Any) -> AsyncIterator[Any]:
        kind: Any = partial(RelayingSession, Worker())
        options = TransportOptions(session_class=kind)
        async with super().connect_session(**{**more, "transport_options": options}) as session:
            yield session


@asynccontextmanager
async def working(app: Any) -> AsyncIterator[RawSession]:
    async with Client(InProcess(app), mode="legacy") as client:
        yield RawSession(client)


@HANDSHAKE
async def test_tasks_of_server_and_client_pass_through(stand: Stand) -> None:
    async with working(stand.app) as session:
        offered = {tool["name"] for tool in (await session.request("tools/list"))["tools"]}
        query = {"topic": "python", "ambiguous": True}
        call = {"name": "simulate-research-query", "arguments": query, "task": {"ttl": 60_000}}
        created = await session.request("tools/call", call)
        task = created["task"]["taskId"]
        results = [
            await session.request("tools/call", {"name": name, "arguments": arguments})
            for name, arguments in (
                ("trigger-sampling-request-async", {"prompt": "bees", "maxTokens": 5}),
                ("trigger-elicitation-request-async", {}),
            )
        ]
        status = await session.request("tasks/get", {"taskId": task})
        listed = await session.request("tasks/list")
        report = await session.request("tasks/result", {"taskId": task})

    assert offered - READING.keys() == TABLE.keys() - {"get-roots-list", "trigger-url-elicitation"} | {
        "trigger-sampling-request-async",
        "trigger-elicitation-request-async",
    }
    assert "done later" in json.dumps(results[0])
    assert "User provided the requested information" in json.dumps(results[1])
    assert status["status"] in ("working", "input_required", "completed")
    assert task in [item["taskId"] for item in listed["tasks"]]
    assert "snake" in json.dumps(report)
