"""Self-contained calls over HTTP: refusals, progress, questions, clients that disconnect."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp_requests import META, Headers, modern, usual
from opentelemetry import trace
from starlette.types import Message
from two_servers import HOME, Webs, opened_in, post, scope_of, whole

from runner.protocol import tool_calls
from sandbox.host.pool import Pool

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def webs(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Webs]:
    async with opened_in(tmp_path_factory.mktemp("direct")) as opened:
        yield opened


async def both(webs: Webs, body: bytes, headers: Headers) -> tuple[list[Any], bool]:
    """Return what both applications answer, which must be the same, and whether one did so directly."""
    webs.taken.clear()
    directly = await post(webs.direct, body, headers)
    was_taken = bool(webs.taken)
    plainly = await post(webs.plain, body, headers)
    assert whole(directly) == whole(plainly)
    return directly, was_taken


async def no_worker(*_args: object) -> None:
    pytest.fail("a worker was taken")


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
async def test_non_json_number_refused_without_worker(
    webs: Webs, number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = json.dumps(modern("echo", {"value": {"a": "here"}})).encode()
    fine, _ = await both(webs, body, usual("echo"))
    monkeypatch.setattr(Pool, "lease", no_worker)

    answered, directly = await both(webs, body.replace(b'"here"', number.encode()), usual("echo"))

    result = json.loads(answered[1]["body"])["result"]
    envelope = json.loads(result["content"][0]["text"])
    assert directly
    assert not json.loads(fine[1]["body"])["result"]["isError"]
    assert result["isError"]
    assert envelope["results"]["error"].startswith("value.a is ")
    assert envelope["meta_data"]["error_code"] == "E_INVALID_ARGUMENT"
    assert envelope["meta_data"]["details"]["argument"] == "value.a"


async def test_non_json_value_beside_arguments_refused(webs: Webs, monkeypatch: pytest.MonkeyPatch) -> None:
    body = modern("echo", {"value": 1}, params={"_meta": {**META, "own": float("nan")}})
    listed = {**body, "method": "prompts/get"}
    monkeypatch.setattr(Pool, "lease", no_worker)

    answered, _ = await both(webs, json.dumps(body).encode(), usual("echo"))
    answers, _ = await both(webs, json.dumps(listed).encode(), usual("echo", mcp_method="prompts/get"))

    assert b"_meta.own is NaN" in answered[1]["body"]
    assert b"_meta.own is NaN" in answers[1]["body"]


async def test_steps_reported_before_answer(webs: Webs) -> None:
    steps = modern("steps", {"count": 3}, params={"_meta": {**META, "progressToken": "p"}})

    answered, _ = await both(webs, json.dumps(steps).encode(), usual("steps"))

    events = b"".join(entry.get("body", b"") for entry in answered).split(b"\r\n\r\n")
    kinds = [json.loads(event.split(b"data: ")[1]).get("method", "answer") for event in events if event]
    assert dict(answered[0]["headers"])[b"content-type"] == b"text/event-stream"
    assert kinds == ["notifications/progress"] * 3 + ["answer"]


async def test_elicitation_state_sealed_and_verified(webs: Webs) -> None:
    answered, directly = await both(webs, json.dumps(modern("asks")).encode(), usual("asks"))
    result = json.loads(answered[1]["body"])["result"]
    state = result["requestState"]
    back = modern("asks", params={"requestState": state, "inputResponses": {}})
    forged = modern("asks", params={"requestState": f"{state[:-4]}AAAA", "inputResponses": {}})
    taken_back = json.loads((await post(webs.direct, json.dumps(back).encode(), usual("asks")))[1]["body"])
    refused = json.loads((await post(webs.direct, json.dumps(forged).encode(), usual("asks")))[1]["body"])

    assert directly
    assert result["resultType"] == "input_required"
    assert "secret" not in state
    assert taken_back["result"]["resultType"] == "input_required"
    assert "requestState" in refused["error"]["message"]


async def test_disconnecting_client_ends_its_call(webs: Webs) -> None:
    left = asyncio.Event()
    body = json.dumps(modern("blocks", {"mark": "begun"})).encode()
    mark = HOME / "begun"

    asking = asyncio.create_task(post(webs.direct, body, usual("blocks"), leaves=left))
    while not mark.exists():
        await asyncio.sleep(0.01)
    left.set()
    sent = await asking

    assert sent == []
    answered, _ = await both(webs, json.dumps(modern("echo", {"value": "after"})).encode(), usual("echo"))
    assert b"after" in answered[1]["body"]


async def test_silent_call_keeps_connection_alive(webs: Webs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_calls, "_PING_S", 0.05)
    monkeypatch.setattr(tool_calls, "_PATIENCE_S", 0.0)
    left = asyncio.Event()
    pinged: list[Message] = []
    body = json.dumps(modern("blocks", {"mark": "pinged"})).encode()

    class Listening(list[Message]):
        def append(self, entry: Message) -> None:
            pinged.append(entry)
            if len(pinged) > 2:
                left.set()

    await post(webs.direct, body, usual("blocks"), leaves=left, sent=Listening())

    assert [entry.get("body", b"") for entry in pinged[:3]] == [b"", b": ping\r\n\r\n", b": ping\r\n\r\n"]


async def test_tracing_server_sees_every_call(webs: Webs, monkeypatch: pytest.MonkeyPatch) -> None:
    class Traced(trace.NoOpTracerProvider):
        pass

    monkeypatch.setattr(tool_calls, "get_tracer_provider", Traced)

    _, directly = await both(webs, json.dumps(modern("echo")).encode(), usual("echo"))

    assert not directly


@pytest.mark.parametrize("headers", [usual("echo"), usual("echo", mcp_method="prompts/get")])
async def test_client_disconnect_before_body_is_not_our_error(
    webs: Webs, headers: Headers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "runner")
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await webs.direct(scope_of(headers, length=9), receive, send)

    assert [message.get("status") for message in sent[:1]] == [400]
    assert [record.message for record in caplog.records if record.name == "runner.http.whole"] == [
        "client disconnected during request"
    ]
