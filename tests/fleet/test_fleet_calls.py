"""One call over a fleet, as its client sees it: values, files, errors, progress, questions, cancel."""

import asyncio
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import pytest
from fleet_world import World, alive, code_of, until
from support import Listening

pytestmark = [pytest.mark.anyio, pytest.mark.needs_s3]


class _Answering(Listening):
    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        assert method == "elicitation/create"
        return {"action": "accept", "content": {"value": "Bob"}}


async def test_value_file_and_error_are_returned(world: World) -> None:
    world.node("one")

    async with world.host() as host:
        summed = await host.result("add", {"a": 1, "b": 2})
        stored_call = await host.call("keep", {"username": "x", "text": "hello"})
        assert not stored_call.processed.is_error, stored_call.processed.value
        read = await host.result("read_file", {"username": "x", "filename": "kept.txt"})
        failed = await host.call("fails")
        unknown = await host.call("no_such_tool")
        stored = await host.toolset.library.of("ann").find("kept.txt")

    assert summed == 3
    assert [file.name for file in stored_call.processed.files] == ["kept.txt"]
    assert stored is not None
    assert (stored.size, stored_call.processed.files[0].sha256) == (5, stored.sha256)
    assert stored_call.processed.value["artifacts"][0]["b64"] == "aGVsbG8="
    assert read == "hello"
    assert code_of(failed) == "E_TOOL"
    assert "it is what this tool does" in str(failed.processed.value)
    assert code_of(unknown) == "E_TOOL_NOT_FOUND"


@pytest.mark.release
async def test_unreturned_file_on_node_is_recorded_by_host(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.more |= {"generated": "keep"}
    world.node("one")

    async with world.host(audit_dir=world.folder / "audit") as host:
        with caplog.at_level("INFO", logger="runner.observation.call_record"):
            await host.result("leave", {"username": "x", "text": "hello"})
            await until(lambda: any(record.message == "call ended" for record in caplog.records))

    (log,) = (world.folder / "audit").glob("*.jsonl")
    (left,) = json.loads(log.read_text().splitlines()[-1])["generated"]
    assert (left["sha256"], left["bytes"]) == (hashlib.sha256(b"hello").hexdigest(), 5)
    assert caplog.records[-1].__dict__["generated"] == 1


@pytest.mark.release
async def test_worker_serves_only_its_own_user(world: World) -> None:
    world.node("one")
    world.node("two")

    async with world.host() as host:
        anns = [await host.result("counted") for _ in range(4)]
        bobs = await host.result("counted", user="bob")

    assert anns == [1, 2, 3, 4]
    assert bobs == 1


@pytest.mark.release
async def test_progress_reaches_the_client_in_order_and_before_the_end(world: World) -> None:
    world.node("one")
    client = Listening()

    async with world.host() as host:
        await host.call("steps", {"count": 20}, client=client)

    progress = [params for method, params in client.notifications if method == "notifications/progress"]
    assert [params["message"] for params in progress] == [f"step {step}" for step in range(20)]


@pytest.mark.release
async def test_a_notice_of_the_node_reaches_the_client(world: World) -> None:
    world.more |= {"idle_timeout_s": 2.0}
    world.node("one")
    client = Listening()

    async with world.host() as host:
        ended = await host.call("wait", {"seconds": 60}, client=client)

    assert code_of(ended) == "E_TIMEOUT"
    assert any(method == "notifications/progress" for method, _ in client.notifications)


@pytest.mark.release
async def test_a_tool_asks_the_client(world: World) -> None:
    world.node("one")

    async with world.host() as host:
        ended = await host.call("ask_name", client=_Answering(), can_send_request=True, protocol="2025-06-18")

    assert ended.processed.value["results"] == "hello Bob"


async def test_a_cancelled_call_ends_on_its_node_and_leaves_no_process(world: World) -> None:
    node = world.node("one")

    async with world.host() as host:
        calling = asyncio.create_task(
            host.call("once", {"runs": str(world.folder / "runs"), "marker": "c", "seconds": 300})
        )
        await until(lambda: world.runs("c"))
        (worker,) = {int(pid) for pid in (world.folder / "runs" / "c").read_text().split()}
        before = node.children()
        calling.cancel()
        await until(lambda: not host.placed)
        await until(lambda: len(alive(before)) < len(before))
        after = await host.result("add", {"a": 1, "b": 1})

    assert worker > 0
    assert after == 2
    assert world.runs("c") == 1
