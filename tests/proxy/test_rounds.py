"""Questions that cross the eras of the protocol: decided without any server."""

import asyncio
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from runner.errors import CallError
from runner.protocol.resource_tools import RemoteError
from runner.proxy.questions import Pausing, answered
from runner.steps.listener import ClientRefusal
from runner.toolset.drain import Drain

pytestmark = pytest.mark.anyio

QUESTION = {"method": "elicitation/create", "params": {"message": "Your name?"}}


def asks(**questions: Any) -> dict[str, Any]:
    return {"resultType": "input_required", "inputRequests": questions, "requestState": "s1"}


class Server:
    """A server of the later era that answers with the given results in turn."""

    def __init__(self, *results: dict[str, Any]) -> None:
        self._results = list(results)
        self.received: list[dict[str, Any]] = []

    async def send(self, params: dict[str, Any]) -> dict[str, Any]:
        self.received.append(params)
        return self._results.pop(0) if len(self._results) > 1 else self._results[0]


class Somebody:
    """A client that answers and records notifications. A `runner.steps.listener.Client`."""

    def __init__(self) -> None:
        self.received: list[str] = []

    async def notify(self, method: str, params: Any) -> None:
        self.received.append(method)

    async def request(self, method: str, params: Any) -> Any:
        return {"action": "accept", "content": {"to": params.get("message")}}


async def test_session_client_elicited_and_request_resent_with_answers() -> None:
    server = Server(asks(q1=QUESTION), {"content": []})

    result = await answered(server.send, {"name": "t"}, Somebody().request)

    assert result == {"content": []}
    assert server.received == [
        {"name": "t"},
        {
            "name": "t",
            "inputResponses": {"q1": {"action": "accept", "content": {"to": "Your name?"}}},
            "requestState": "s1",
        },
    ]


async def test_later_era_client_gets_questions_themselves() -> None:
    server = Server(asks(q1=QUESTION))

    assert await answered(server.send, {"name": "t"}, None) == asks(q1=QUESTION)


async def test_endlessly_asking_server_is_abandoned() -> None:
    server = Server(asks(q1=QUESTION))

    with pytest.raises(RemoteError, match="asked 20 times for more"):
        await answered(server.send, {}, Somebody().request)


@pytest.mark.parametrize("question", [{"method": "tools/list"}, {"method": 3}, "what?", None])
async def test_only_protocol_questions_reach_client(question: Any) -> None:
    server = Server(asks(q1=question))

    with pytest.raises(RemoteError, match="which no client is asked"):
        await answered(server.send, {}, Somebody().request)


async def test_refusal_of_client_ends_request() -> None:
    async def refuse(_method: str, _params: Any) -> Any:
        raise ClientRefusal(-32601, "no elicitation here")

    with pytest.raises(RemoteError, match="no elicitation here"):
        await answered(Server(asks(q1=QUESTION)).send, {}, refuse)


async def ask_twice(client: Any) -> dict[str, Any]:
    """A call during which a server of the handshake era asks two questions and reports between them."""
    first = await client.request("elicitation/create", {"message": "one"})
    await client.notify("notifications/progress", {})
    second = await client.request("elicitation/create", {"message": "two"})
    return {"answers": [first["content"], second["content"]]}


async def resumed(
    pausing: Pausing, interim: dict[str, Any], answers: dict[str, Any], client: Any, user: str, **more: Any
) -> Any:
    """Return what the client gets that repeats a call with answers."""
    return await pausing.run(ask_twice, client, user, state=interim["requestState"], answers=answers, **more)


def reply(interim: dict[str, Any], word: str) -> dict[str, Any]:
    return {number: {"action": "accept", "content": word} for number in interim["inputRequests"]}


async def test_paused_call_resumes_when_client_returns() -> None:
    pausing, coming_back = Pausing(), Somebody()

    first = await pausing.run(ask_twice, Somebody(), "ann")
    second = await resumed(pausing, first, reply(first, "a"), coming_back, "ann", token="t")
    result = await resumed(pausing, first, reply(second, "b"), Somebody(), "ann")

    assert [question["params"]["message"] for question in first["inputRequests"].values()] == ["one"]
    assert [question["params"]["message"] for question in second["inputRequests"].values()] == ["two"]
    assert coming_back.received == ["notifications/progress"]
    assert result == {"answers": ["a", "b"]}


class Slow:
    """A client that receives slowly, so that further notifications queue up."""

    def __init__(self) -> None:
        self.received: list[tuple[str, Any, int]] = []

    async def notify(self, method: str, params: Any) -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        self.received.append((method, params.get("progressToken"), params["n"]))

    async def request(self, method: str, params: Any) -> Any:
        raise AssertionError("it cannot be asked")


async def test_reports_ordered_across_resumed_requests() -> None:
    may_report, progress = asyncio.Event(), "notifications/progress"

    async def reports(client: Any) -> dict[str, Any]:
        async def report(method: str, n: int) -> None:
            await client.notify(
                method, {"n": n, **({"progressToken": "first"} if method == progress else {})}
            )

        async with asyncio.TaskGroup() as tasks:
            # As a server says them: the question close behind the reports, and more while nobody listens.
            tasks.create_task(report(progress, 1))
            tasks.create_task(report(progress, 2))
            asking = tasks.create_task(client.request("roots/list", {}))
            await may_report.wait()
            tasks.create_task(report(progress, 3))
            tasks.create_task(report("notifications/message", 4))
            await asking
            tasks.create_task(report(progress, 5))
        return {"content": []}

    pausing, first, second = Pausing(), Slow(), Slow()

    interim = await pausing.run(reports, first, "ann", token="first")
    received_before = list(first.received)
    may_report.set()
    for _ in range(100):
        await asyncio.sleep(0)
    result = await resumed(pausing, interim, reply(interim, "a"), second, "ann", token="second")

    assert result == {"content": []}
    assert first.received == received_before
    assert first.received + second.received == [
        *((progress, "first" if n <= len(received_before) else "second", n) for n in (1, 2, 3)),
        ("notifications/message", None, 4),
        (progress, "second", 5),
    ]


async def test_later_request_without_progress_token_gets_none() -> None:
    pausing, coming_back = Pausing(), Somebody()

    first = await pausing.run(ask_twice, Somebody(), "ann", token="first")
    await resumed(pausing, first, reply(first, "a"), coming_back, "ann")
    await pausing.close()

    assert coming_back.received == []


async def test_unanswered_question_is_asked_again() -> None:
    pausing = Pausing()

    first = await pausing.run(ask_twice, Somebody(), "ann")
    again = await resumed(pausing, first, {}, Somebody(), "ann")
    await pausing.close()

    assert again == first


async def test_call_without_questions_returns_result_or_error() -> None:
    async def work(_client: Any) -> dict[str, Any]:
        return {"content": []}

    async def fail(_client: Any) -> dict[str, Any]:
        raise RemoteError("gone")

    assert await Pausing().run(work, Somebody(), "ann") == {"content": []}
    with pytest.raises(RemoteError, match="gone"):
        await Pausing().run(fail, Somebody(), "ann")


async def test_paused_call_of_another_user_not_resumable() -> None:
    pausing = Pausing()
    first = await pausing.run(ask_twice, Somebody(), "ann")

    with pytest.raises(MCPError, match="no longer waits"):
        await resumed(pausing, first, reply(first, "a"), Somebody(), "bob")

    second = await resumed(pausing, first, reply(first, "a"), Somebody(), "ann")
    await pausing.close()
    assert second["inputRequests"]


async def test_question_nobody_answers_ends_with_refusal() -> None:
    ended = asyncio.Event()
    received: list[str] = []

    async def work(client: Any) -> dict[str, Any]:
        try:
            await client.request("roots/list", {})
        except ClientRefusal as refusal:
            received.append(str(refusal))
        ended.set()
        return {}

    # Twice as long after that the call itself is given up: far enough apart for a busy machine.
    pausing = Pausing(answer_s=0.4)
    await pausing.run(work, Somebody(), "ann")
    await ended.wait()

    assert received == ["the client did not answer within 0 s"]


async def test_oldest_paused_call_of_user_dropped_at_limit() -> None:
    pausing = Pausing()
    other = await pausing.run(ask_twice, Somebody(), "bob")
    questions = [await pausing.run(ask_twice, Somebody(), "ann") for _ in range(17)]

    with pytest.raises(MCPError, match="no longer waits"):
        await resumed(pausing, questions[0], {}, Somebody(), "ann")

    again = [await resumed(pausing, each, {}, Somebody(), "ann") for each in questions[1:]]
    assert len(again) == 16
    assert (await resumed(pausing, other, {}, Somebody(), "bob"))["inputRequests"]
    await pausing.close()


async def test_unanswered_question_does_not_delay_stop() -> None:
    pausing, drain = Pausing(), Drain()
    drain.begins.append(pausing.stop)

    async def tell(_notice: str) -> None:
        pass

    async def work(client: Any) -> dict[str, Any]:
        async with drain.call(tell):
            return await ask_twice(client)

    first = await pausing.run(work, Somebody(), "ann")
    assert drain.running
    drain.begin(600)
    async with asyncio.timeout(60):
        await drain.done()

    with pytest.raises(MCPError, match="no longer waits"):
        await resumed(pausing, first, reply(first, "a"), Somebody(), "ann")
    with pytest.raises(CallError, match="server was stopped"):
        await pausing.run(ask_twice, Somebody(), "ann")


async def test_client_cancelling_request_ends_call() -> None:
    cancelled, started = asyncio.Event(), asyncio.Event()

    async def work(_client: Any) -> dict[str, Any]:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return {}

    request = asyncio.create_task(Pausing().run(work, Somebody(), "ann"))
    await started.wait()
    request.cancel()
    await asyncio.wait({request})

    assert cancelled.is_set()
