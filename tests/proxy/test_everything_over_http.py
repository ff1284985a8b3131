"""The everything-server behind `runner proxy` as a process of its own, asked over HTTP in each era.

Source: `docs/output-guard.md`.
"""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from everything import BLOB, SERVER, TEXT, Person, node, words
from fastmcp import Client
from mcp.client.subscriptions import listen
from proxying import messages_of_call, proxy_command

pytestmark = [
    pytest.mark.needs_npm,
    pytest.mark.release,
    pytest.mark.anyio,
    pytest.mark.kernel,
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the command, for both eras: a server is started for each client all the same."""
    folder = tmp_path_factory.mktemp("front")
    folder.chmod(0o700)
    with proxy_command(folder, "--", node(), str(SERVER), "stdio") as url:
        yield url


@dataclass
class Visit:
    """A client of the command, and who answers for it."""

    mode: str
    client: Any
    person: Person


@pytest.fixture(scope="module", params=["legacy", "auto"])
async def visit(request: pytest.FixtureRequest, front: str) -> AsyncIterator[Visit]:
    person = Person()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(front, mode=request.param, **person.options()))
        yield Visit(request.param, client, person)


async def test_both_eras_are_spoken(visit: Visit) -> None:
    spoken = {"legacy": "2025-11-25", "auto": "2026-07-28"}

    assert visit.client.session.protocol_version == spoken[visit.mode]


async def test_tools_answer_elicit_and_report(visit: Visit) -> None:
    steps: list[Any] = []

    async def progress(*report: Any) -> None:
        steps.append(report[:2])

    names = {tool.name for tool in await visit.client.list_tools()}
    added = await visit.client.call_tool_mcp("get-sum", {"a": 1.5, "b": 2})
    structured = await visit.client.call_tool_mcp("get-structured-content", {"location": "Chicago"})
    elicited = await visit.client.call_tool_mcp("trigger-elicitation-request", {})
    long = {"duration": 0.2, "steps": 2}
    await visit.client.call_tool("trigger-long-running-operation", long, progress_handler=progress)

    assert {"get-sum", "get-tiny-image", "trigger-elicitation-request"} <= names
    assert words(added) == "The sum of 1.5 and 2 is 3.5."
    assert structured.structured_content["conditions"] == "Light rain / drizzle"
    assert "User provided the requested information" in words(elicited)
    assert "Ann" in words(elicited)
    assert steps == [(1.0, 2.0), (2.0, 2.0)]


def test_steps_all_sent_before_answer(front: str) -> None:
    long = {"duration": 0.02, "steps": 2}

    kinds = []
    for _ in range(10):
        messages = messages_of_call(front, "trigger-long-running-operation", long)
        kinds.append([message.get("method", "answer") for message in messages])

    assert kinds == [["notifications/progress", "notifications/progress", "answer"]] * 10


async def test_large_and_binary_outputs_become_readable_references(visit: Visit) -> None:
    long = "".join(f"row {n} of many\n" for n in range(20_000))

    text = await visit.client.call_tool_mcp("echo", {"message": long})
    picture = await visit.client.call_tool_mcp("get-tiny-image", {})
    reference = json.loads(text.content[0].text)["artifact"]
    lines = {"id": reference["id"], "first_line": 11, "lines": 1}
    part = await visit.client.call_tool("artifact_read", lines)
    image = next(block for block in picture.content if block.type == "resource_link")
    fetched = await visit.client.read_resource(str(image.uri))

    assert len(text.model_dump_json()) < 5_000
    assert "row 10 of many" in part.structured_content["text"]
    assert image.mime_type == "image/png"
    assert fetched[0].blob.startswith("iVBORw0KGgo")


async def test_resources_are_listed_and_read(visit: Visit) -> None:
    listed = [str(item.uri) for item in await visit.client.list_resources()]
    templates = [item.uri_template for item in await visit.client.list_resource_templates()]
    text, blob = await visit.client.read_resource(TEXT), await visit.client.read_resource(BLOB)

    assert "demo://resource/static/document/architecture.md" in listed
    assert "demo://resource/dynamic/text/{resourceId}" in templates
    assert text[0].text.startswith("Resource 1")
    assert blob[0].blob


async def test_subscriber_notified_of_change(visit: Visit) -> None:
    """S4-93: on the stream that a client with sessions keeps open, or on the one that it opened for it."""
    uri = "demo://resource/dynamic/text/11"

    if visit.mode == "legacy":
        await visit.client.session.subscribe_resource(uri)
        await visit.client.call_tool("toggle-subscriber-updates")
        update = await visit.person.until(
            lambda what, update: what.endswith("resources/updated") and str(update.uri) == uri
        )
        await visit.client.session.unsubscribe_resource(uri)
    else:
        async with listen(visit.client.session, resource_subscriptions=[uri]) as events:
            await visit.client.call_tool("toggle-subscriber-updates")
            update = await anext(events)
    await visit.client.call_tool("toggle-subscriber-updates")

    assert str(update.uri) == uri
