"""Messages relayed unchanged by the proxy, and those that the output guard changes, in both eras."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fastmcp import Client
from mcp.client.subscriptions import listen
from mcp.server.subscriptions import ResourceUpdated
from mcp.shared.exceptions import MCPError
from proxying import (
    PAGED,
    messages_of_call,
    over_http,
    over_stdio,
    proxied,
    proxy_command,
    result,
    unreachable,
    upstreams_for,
)

from runner.proxy.server import make_proxy
from runner.users.identity import User

pytestmark = [
    pytest.mark.release,
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]

ERAS = pytest.mark.parametrize("mode", ["auto", "legacy"])
NOWHERE = "http://127.0.0.1:9/mcp"


@pytest.fixture
async def both(remote_url: str, folder: Path, user: str, mode: str) -> AsyncIterator[Any]:
    """A client of the server itself, and one of the proxy before it."""
    async with Client(remote_url, mode=mode) as direct:  # noqa: SIM117 - in this order
        async with proxied(folder, user, over_http(remote_url), mode=mode) as behind:
            yield direct, behind


async def raw_lists(client: Any) -> list[Any]:
    answers = [
        await client.list_tools_mcp(),
        await client.list_prompts_mcp(),
        await client.list_resources_mcp(),
    ]
    lists = [
        answer.model_dump(by_alias=True, exclude={"meta", "ttl_ms", "cache_scope"}) for answer in answers
    ]
    # A proxy adds these to the tools of its server.
    tools = [tool for tool in lists[0]["tools"] if not tool["name"].startswith("artifact_")]
    return [{**lists[0], "tools": tools}, *lists[1:]]


@ERAS
async def test_lists_and_identity_of_server_unchanged(both: Any) -> None:
    direct, behind = both

    assert await raw_lists(behind) == await raw_lists(direct)
    assert behind.session.server_info.model_dump() == direct.session.server_info.model_dump()
    assert behind.session.instructions == direct.session.instructions == "Ask for rows."


@ERAS
async def test_small_results_prompts_resources_completions_unchanged(both: Any) -> None:
    direct, behind = both
    reference = {"type": "ref/prompt", "name": "greet"}

    async def seen(client: Any) -> list[Any]:
        called = await client.call_tool_mcp("add", {"a": 1, "b": 2})
        return [
            called.model_dump(exclude={"meta"}),
            (await client.get_prompt("greet", {"name": "Ann"})).model_dump(exclude={"meta"}),
            [item.model_dump() for item in await client.read_resource("note://short")],
            [item.model_dump() for item in await client.read_resource("note://picture")],
            [item.model_dump() for item in await client.read_resource("note://monday/entry")],
            (
                await client.session.complete(_ref(reference), {"name": "name", "value": "A"})
            ).completion.values,
        ]

    assert await seen(behind) == await seen(direct)


def _ref(reference: dict[str, str]) -> Any:
    import mcp_types

    return mcp_types.PromptReference.model_validate(reference)


@ERAS
async def test_binary_content_hidden_from_model_and_fetchable(both: Any) -> None:
    """Source: S4-74, S4-79 and S4-88."""
    direct, behind = both
    whole = (await direct.call_tool("pdf", {"name": "report"})).structured_content["content"]

    called = await behind.call_tool_mcp("pdf", {"name": "report"})

    shown = called.model_dump_json()
    reference = json.loads(called.content[0].text)["content"]["artifact"]
    fetched = await behind.read_resource(f"artifact://{reference['id']}")
    assert whole[:1000] not in shown
    assert reference["mime_type"] == "application/pdf"
    assert fetched[0].blob == whole


@ERAS
async def test_picture_becomes_link_to_stored_file(both: Any) -> None:
    _, behind = both

    block = (await behind.call_tool_mcp("picture", {})).content[0]

    assert (block.type, block.mime_type, block.size) == ("resource_link", "image/png", 2008)
    assert str(block.uri).startswith("artifact://")


@ERAS
async def test_shortened_long_result_satisfies_tool_schema(both: Any) -> None:
    direct, behind = both
    schema = next(tool for tool in await direct.list_tools() if tool.name == "page").output_schema

    called = await behind.call_tool_mcp("page", {"chars": 60_000})

    jsonschema.validate(called.structured_content, schema)
    assert len(called.model_dump_json()) < 50_000
    assert "artifact://" in called.structured_content["body"]


@ERAS
async def test_server_progress_and_messages_reach_client(
    remote_url: str, folder: Path, user: str, mode: str
) -> None:
    received: list[Any] = []

    async def progress(*report: Any) -> None:
        received.append(report)

    async def message(notification: Any) -> None:
        received.append(notification.data["msg"])

    listening = {"progress_handler": progress, "log_handler": message}
    async with proxied(folder, user, over_http(remote_url), mode=mode, client=listening) as behind:
        assert await result(behind, "steps") == "done"

    assert received[:3] == [(0.0, 3.0, "step 0"), (1.0, 3.0, "step 1"), (2.0, 3.0, "step 2")]
    assert received[3:] == ["half way"]


async def test_server_question_answered_by_client(remote_url: str, folder: Path, user: str) -> None:
    async def answer(message: str, *_more: Any) -> dict[str, str]:
        return {"value": f"Ann ({message})"}

    handlers = {"elicitation_handler": answer}
    async with proxied(folder, user, over_http(remote_url), mode="legacy", client=handlers) as behind:
        assert await result(behind, "ask") == "hello Ann (Your name?)"


@ERAS
async def test_link_read_only_if_size_known_and_below_limit(
    remote_url: str, folder: Path, user: str, mode: str
) -> None:
    """S4-11, S4-82: otherwise the link is what a model gets."""
    guard = {"resources": {"auto_read_if_size_under_bytes": 100}}
    links = [("note://short", 6), ("note://short", None), ("note://short", 100), ("note://long", 50)]
    async with proxied(folder, user, over_http(remote_url), mode=mode, output_guard=guard) as behind:
        blocks = [
            (await behind.call_tool_mcp("link", {"uri": uri, "size": size})).content[0] for uri, size in links
        ]

    assert blocks[0].resource.text == "a note"
    assert [str(block.uri) for block in blocks[1:3]] == ["note://short", "note://short"]
    assert str(blocks[3].uri).startswith("artifact://")


@ERAS
async def test_model_reads_resources_through_optional_tools(
    remote_url: str, folder: Path, user: str, mode: str
) -> None:
    """S4-83, S4-84, S4-92, S4-95: nothing binary is inlined, and text up to a limit."""
    target = over_http(remote_url)
    async with proxied(folder, user, target, mode=mode) as without:
        names = [tool.name for tool in await without.list_tools()]
    async with proxied(folder, user, target, mode=mode, resource_tools=True) as behind:
        offered = [tool.name for tool in await behind.list_tools()]
        listed = (await behind.call_tool("remote.resources_list")).structured_content["resources"]
        read = [
            (await behind.call_tool("remote.resources_read", {"uri": uri})).structured_content
            for uri in ("note://short", "note://long", "note://picture")
        ]

    assert [name for name in offered if name not in names] == [
        "remote.resources_list",
        "remote.resources_read",
        "remote.resources_templates_list",
    ]
    assert "note://short" in [item["uri"] for item in listed]
    assert read[0] == {"uri": "note://short", "mimeType": "text/plain", "text": "a note"}
    assert [item["artifact"]["size_bytes"] for item in read[1:]] == [10_001, 2008]
    assert not any("blob" in item or "text" in item for item in read[1:])


async def test_session_client_notified_of_changed_resource(remote_url: str, folder: Path, user: str) -> None:
    updates: asyncio.Queue[str] = asyncio.Queue()

    async def hear(message: Any) -> None:
        if message.method == "notifications/resources/updated":
            await updates.put(str(message.params.uri))

    async with proxied(
        folder, user, over_http(remote_url), mode="legacy", client={"message_handler": hear}
    ) as behind:
        await behind.session.subscribe_resource("live://one")
        await behind.call_tool("change", {"uri": "live://one"})
        updated_uri = await updates.get()
        await behind.session.unsubscribe_resource("live://one")
        await behind.call_tool("change", {"uri": "live://one"})

    assert updated_uri == "live://one"
    assert updates.empty()


async def test_sessionless_client_notified_on_its_own_stream(
    remote_url: str, folder: Path, user: str
) -> None:
    async with (
        proxied(folder, user, over_http(remote_url)) as behind,
        listen(behind.session, resource_subscriptions=["live://one"]) as events,
    ):
        await behind.call_tool("change", {"uri": "live://one"})
        event = await anext(events)

    assert event == ResourceUpdated(uri="live://one")


async def test_change_of_resubscribed_resource_reported_once(
    remote_url: str, folder: Path, user: str
) -> None:
    async with upstreams_for(folder, user, over_http(remote_url)) as upstreams:
        with upstreams.events.subscribe(user=User(user).segment) as events:
            async with Client(make_proxy(upstreams, transport="stdio")) as behind:

                async def visit() -> None:
                    async with listen(behind.session, resource_subscriptions=["live://one"]):
                        pass

                await asyncio.gather(*(visit() for _ in range(3)))
                uris = ["live://one", "live://two"]
                async with listen(behind.session, resource_subscriptions=uris) as changes:
                    for uri in uris:
                        await behind.call_tool("change", {"uri": uri})
                        assert await asyncio.wait_for(anext(changes), 10) == ResourceUpdated(uri=uri)
        received = [event["uri"] async for event in events if event["type"] == "resource_updated"]

    assert received == uris


async def test_cancelled_subscription_ends_its_stream(
    remote_url: str, folder: Path, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested, ended = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def unconfirmed(*_args: Any, **wanted: Any) -> AsyncIterator[None]:
        try:
            if "resource_subscriptions" in wanted:
                requested.set()
            await asyncio.Event().wait()
            yield
        finally:
            if "resource_subscriptions" in wanted:
                ended.set()

    async def subscribe(session: Any) -> None:
        async with listen(session, resource_subscriptions=["live://one"]):
            pass

    monkeypatch.setattr("runner.proxy.upstream.listen", unconfirmed)
    async with proxied(folder, user, over_http(remote_url)) as behind:
        subscribing = asyncio.create_task(subscribe(behind.session))
        await requested.wait()
        subscribing.cancel()
        await asyncio.wait_for(ended.wait(), 120)


async def test_unconfirmed_subscription_refused_in_time(
    remote_url: str, folder: Path, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def unconfirmed(*_args: Any, **_wanted: Any) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield

    monkeypatch.setattr("runner.proxy.upstream.listen", unconfirmed)
    async with proxied(folder, user, over_http(remote_url), idle_timeout_s=5) as behind:
        with pytest.raises(MCPError, match="it did not confirm a subscription: TimeoutError"):
            async with listen(behind.session, resource_subscriptions=["live://one"]):
                pass


async def test_change_invalidates_cached_read_and_is_an_event(
    remote_url: str, folder: Path, user: str
) -> None:
    """S4-81, S4-93, S4-94: what was read is kept by its URI until it is updated."""
    async with upstreams_for(folder, user, over_http(remote_url), resource_tools=True) as upstreams:
        with upstreams.events.subscribe(user=User(user).segment) as events:
            async with Client(make_proxy(upstreams, transport="stdio"), mode="legacy") as behind:

                async def read() -> Any:
                    called = await behind.call_tool("remote.resources_read", {"uri": "live://one"})
                    return called.structured_content["text"]

                await behind.session.subscribe_resource("live://one")
                await read()
                await behind.call_tool("change", {"uri": "live://one"})
                received = [await anext(events)]
                after = await read()

    assert [(event["type"], event["uri"]) for event in received] == [("resource_updated", "live://one")]
    assert after == "changed"


@ERAS
async def test_lists_followed_to_last_page(folder: Path, user: str, mode: str) -> None:
    """S4-96: a model, and who lists several servers, gets all of it; a client of one pages by itself."""
    target, settings = over_stdio("paged", PAGED), {"resource_tools": True}
    async with proxied(folder, user, target, mode=mode, **settings) as behind:
        page = await behind.session.list_resources()
        whole = [
            (await behind.call_tool(f"paged.resources_{name}")).structured_content[key]
            for name, key in (("list", "resources"), ("templates_list", "resourceTemplates"))
        ]
    async with proxied(folder, user, target, over_stdio("again", PAGED), mode=mode) as several:
        joined = [str(item.uri) for item in await several.list_resources()]

    assert ([str(item.uri) for item in page.resources], page.next_cursor) == (["page://0", "page://1"], "2")
    assert [item["uri"] for item in whole[0]] == [f"page://{n}" for n in range(5)]
    assert [item["uriTemplate"] for item in whole[1]] == [f"page://{n}/{{x}}" for n in range(5)]
    assert joined == [f"page://{name}/{n}" for name in ("paged", "again") for n in range(5)]


async def test_events_carry_no_bytes(remote_url: str, folder: Path, user: str) -> None:
    """S4-5, S4-67, S4-80: interfaces hear of a reference; the bytes are in the store, whole."""
    async with upstreams_for(folder, user, over_http(remote_url)) as upstreams:
        with upstreams.events.subscribe(user=User(user).segment) as events:
            async with Client(make_proxy(upstreams, transport="stdio"), mode="legacy") as behind:
                called = await behind.call_tool_mcp("pdf", {"name": "report"})
                reference = json.loads(called.content[0].text)["content"]["artifact"]
                event = await anext(events)
                stored = await upstreams.files(User(user)).by_id(reference["id"])

    assert stored is not None
    assert (event["uri"], stored.size) == (f"artifact://{reference['id']}", reference["size_bytes"])
    assert len(json.dumps(event)) < 2000


@ERAS
async def test_fitting_result_keeps_form_of_its_tool(both: Any) -> None:
    """S4-65: what a tool returns stands under `result`, transformed or not."""
    direct, behind = both

    small = [(await client.call_tool_mcp("add", {"a": 1, "b": 2})) for client in (direct, behind)]
    long = await behind.call_tool_mcp("text", {"chars": 40_000})

    assert [called.structured_content for called in small] == [{"result": 3}, {"result": 3}]
    assert set(long.structured_content) == {"result"}
    assert "artifact://" in long.structured_content["result"]


@ERAS
async def test_several_servers_prefixed_and_failed_one_isolated(
    remote_url: str, folder: Path, user: str, mode: str
) -> None:
    targets = [over_http(remote_url, "one"), over_http(NOWHERE, "gone"), over_http(remote_url, "two")]
    async with proxied(folder, user, *targets, mode=mode) as behind:
        tools = [tool.name for tool in await behind.list_tools()]
        resources = [str(item.uri) for item in await behind.list_resources()]
        added = [await result(behind, f"{name}_add", a=1, b=2) for name in ("one", "two")]
        note = await behind.read_resource("note://two/short")
        greeting = await behind.get_prompt("one_greet", {"name": "Bo"})
        failed = await behind.call_tool("gone_add", {}, raise_on_error=False)

    assert {"one_add", "two_add"} <= set(tools)
    assert "note://one/short" in resources
    assert added == [3, 3]
    assert note[0].text == "a note"
    assert greeting.messages[0].content.text == "Greet Bo."
    assert failed.is_error
    assert "gone cannot be reached" in failed.content[0].text


async def test_client_without_reachable_server_gets_reason(folder: Path, user: str) -> None:
    error = await unreachable(folder, user, over_http(NOWHERE))
    async with proxied(folder, user, over_http(NOWHERE)) as sessionless:
        with pytest.raises(MCPError, match="the server remote cannot be reached"):
            await sessionless.list_tools()

    assert "the server remote cannot be reached" in error


@ERAS
async def test_server_error_reaches_client_unchanged(both: Any) -> None:
    direct, behind = both

    async def refusal(client: Any) -> Any:
        called = await client.call_tool_mcp("add", {"a": "no number", "b": 2})
        return called.model_dump(exclude={"meta"})

    assert await refusal(behind) == await refusal(direct)


@ERAS
async def test_stored_content_read_back_by_tools_listed_before(both: Any) -> None:
    direct, behind = both
    own = [tool.name for tool in await direct.list_tools()]
    offered = [tool.name for tool in await behind.list_tools()][len(own) :]

    called = await behind.call_tool_mcp("text", {"chars": 40_000})

    reference = json.loads(called.content[0].text)["artifact"]
    lines = await behind.call_tool("artifact_read", {"id": reference["id"], "first_line": 4000, "lines": 2})
    found = await behind.call_tool("artifact_search", {"id": reference["id"], "pattern": "^line 49(9|8)0$"})
    assert offered == ["artifact_info", "artifact_read", "artifact_search"]
    assert lines.structured_content["text"] == "line 3999\nline 4000"
    assert [match["match"] for match in found.structured_content["matches"]] == ["line 4980", "line 4990"]


async def test_cancelled_call_is_cancelled_at_server(remote_url: str, folder: Path, user: str) -> None:
    started = asyncio.Event()

    async def progress(*_report: Any) -> None:
        started.set()

    target, hearing = over_http(remote_url), {"progress_handler": progress}
    async with proxied(folder, user, target, mode="legacy", client=hearing) as behind:
        call = asyncio.create_task(behind.call_tool("silent", {"seconds": 100}))
        await started.wait()
        call.cancel()

        assert await result(behind, "cancelled") == "cancelled"


def test_unrepresentable_arguments_refused_or_repaired(remote_url: str, folder: Path) -> None:
    with proxy_command(folder, remote_url) as front:
        fine, refused, deep, repaired = [
            messages_of_call(front, "see", {"path": path})[-1]["result"]
            for path in ("/nowhere", [float("nan")], json.loads("[" * 300 + "]" * 300), "/nowhere/a\ud800b")
        ]

    assert fine["content"][0]["text"] == repaired["content"][0]["text"] == "FileNotFoundError"
    assert refused["isError"]
    assert "E_INVALID_ARGUMENT" in refused["content"][0]["text"]
    assert "path[0] is NaN" in refused["content"][0]["text"]
    assert "E_INVALID_ARGUMENT" in deep["content"][0]["text"]
