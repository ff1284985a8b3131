"""Calls in sessions over HTTP: cancelled, ended, continued, questioned; as the SDK treats them."""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp_requests import plain
from starlette.applications import Starlette
from starlette.types import Message
from support import becomes
from two_servers import HOME, Client, Webs, messages, opened_in, whole

from runner.protocol import tool_calls
from runner.settings.auth import Auth

pytestmark = [pytest.mark.anyio, pytest.mark.release]

VERSION = "2025-11-25"


@pytest.fixture(scope="module")
async def webs(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Webs]:
    async with opened_in(tmp_path_factory.mktemp("sessions")) as opened:
        yield opened


BOTH = pytest.mark.parametrize("directly", [True, False], ids=["directly", "by the SDK"])


def web_of(webs: Webs, *, directly: bool) -> Starlette:
    return webs.direct if directly else webs.plain


def calls(webs: Webs) -> int:
    """Return how many calls run."""
    return webs.toolset.admission.counts[0]


def marker_message(mark: str) -> dict[str, Any]:
    """Return a call that leaves a mark once it runs, and goes on for a minute."""
    return plain("blocks", {"mark": mark})


@contextlib.asynccontextmanager
async def running(webs: Webs, client: Client, **more: Any) -> AsyncIterator[asyncio.Task[list[Message]]]:
    """Run one long call during the block, and return its messages."""
    mark = uuid.uuid4().hex
    assert await becomes(lambda: not calls(webs))
    webs.taken.clear()
    asking = asyncio.create_task(client.post(marker_message(mark), **more))
    try:
        assert await becomes((HOME / mark).exists)
        yield asking
    finally:
        # It goes on without its client, and would be counted by the next test that counts calls.
        await client.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}})
        asking.cancel()
        await asyncio.wait({asking})


@BOTH
async def test_cancelled_call_ends_and_is_answered_so(webs: Webs, *, directly: bool) -> None:
    client = await Client.of(web_of(webs, directly=directly))
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "7"}}

    async with running(webs, client) as asking:
        assert await client.post(cancel)
        sent = await asking

    assert bool(webs.taken) == directly
    assert messages(sent) == [
        {"jsonrpc": "2.0", "id": 7, "error": {"code": -32800, "message": "Request cancelled"}}
    ]
    assert await becomes(lambda: not calls(webs))


@BOTH
async def test_ended_session_cancels_calls_and_answers_404(webs: Webs, *, directly: bool) -> None:
    client = await Client.of(web_of(webs, directly=directly))

    async with running(webs, client) as asking:
        ended = await client.post(None, method="DELETE")
        sent = await asking
    webs.taken.clear()
    after = await client.post(plain("echo"))

    assert ended[0]["status"] == 200
    assert (sent[0]["status"], messages(sent), sent[-1].get("more_body", False)) == (200, [], False)
    assert await becomes(lambda: not calls(webs))
    assert after[0]["status"] == 404
    assert not webs.taken


@BOTH
async def test_call_continues_after_client_disconnects(webs: Webs, *, directly: bool) -> None:
    client, left = await Client.of(web_of(webs, directly=directly)), asyncio.Event()

    async with running(webs, client, leaves=left) as asking:
        left.set()
        await asking
        assert calls(webs) == 1
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        await client.post(cancel)
        assert await becomes(lambda: not calls(webs))

    assert bool(webs.taken) == directly
    assert b"after" in (await client.post(plain("echo", {"value": "after"})))[1]["body"]


@BOTH
async def test_tool_questions_and_notices_arrive_in_order(webs: Webs, *, directly: bool) -> None:
    client = await Client.of(web_of(webs, directly=directly), elicitation={})
    sent: list[Message] = []
    webs.taken.clear()

    wonders = plain("wonders", params={"_meta": {"progressToken": "p"}})
    asking = asyncio.create_task(client.post(wonders, sent=sent))
    for number in (1, 2):
        assert await becomes(lambda: sum("id" in each for each in messages(sent)) >= number), sent  # noqa: B023
        question = [each for each in messages(sent) if "id" in each][-1]
        reply = {"action": "accept", "content": {"value": f"word {number}"}}
        accepted = await client.post({"jsonrpc": "2.0", "id": question["id"], "result": reply})
        assert accepted[0]["status"] == 202
    await asking

    assert bool(webs.taken) == directly
    assert [each.get("method", "answer") for each in messages(sent)] == [
        "notifications/progress",
        "elicitation/create",
        "notifications/progress",
        "elicitation/create",
        "notifications/message",
        "answer",
    ]
    ids = [each["id"] for each in messages(sent) if "id" in each]
    # No id of ours is one that the SDK gives, which asks on the same session.
    assert [type(each) for each in ids] == [str if directly else int] * 2 + [int]
    assert (len(set(ids)), ids[-1]) == (3, 7)
    assert messages(sent)[-1]["result"]["structuredContent"] == {"result": "word 1 word 2"}


@BOTH
async def test_tool_asks_model_and_person_of_its_client(webs: Webs, *, directly: bool) -> None:
    client = await Client.of(web_of(webs, directly=directly), elicitation={}, sampling={})
    written = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "written"}}
    agreed = {"action": "accept", "content": {"value": "more"}}
    sent: list[Message] = []
    webs.taken.clear()

    asking = asyncio.create_task(client.post(plain("draws"), sent=sent))
    for number, answer in enumerate((written, agreed, written), start=1):
        assert await becomes(lambda: len(messages(sent)) >= number), sent  # noqa: B023
        await client.post({"jsonrpc": "2.0", "id": messages(sent)[-1]["id"], "result": answer})
    await asking

    assert bool(webs.taken) == directly
    assert [each.get("method", "answer") for each in messages(sent)] == [
        "sampling/createMessage",
        "elicitation/create",
        "sampling/createMessage",
        "answer",
    ]
    assert messages(sent)[-1]["result"]["structuredContent"]["drawn"] == ["written", "written"]


@BOTH
async def test_client_gets_no_message_below_its_level(webs: Webs, *, directly: bool) -> None:
    client = await Client.of(web_of(webs, directly=directly))
    steps = plain("steps", {"count": 1})
    webs.taken.clear()

    before = messages(await client.post(steps))
    level = {"jsonrpc": "2.0", "id": 1, "method": "logging/setLevel", "params": {"level": "error"}}
    await client.post(level)
    after = messages(await client.post(steps))

    assert bool(webs.taken) == directly
    assert [each.get("method") for each in before] == ["notifications/message", None]
    assert [each.get("method") for each in after] == [None]


async def test_session_calls_run_concurrently_same_id_both_answered(
    webs: Webs,
) -> None:
    client = await Client.of(webs.direct)
    calls = [plain("echo", {"value": number}, id=number) for number in range(4)]

    async with running(webs, client):
        answers = await asyncio.gather(*(client.post(call) for call in calls))
        same = await client.post(plain("echo", {"value": "second"}))

    assert [messages(sent)[0]["id"] for sent in answers] == [0, 1, 2, 3]
    assert messages(same)[0]["result"]["_meta"]["toolcell/result"] == {"results": "second"}


@BOTH
async def test_request_before_handshake_refused(webs: Webs, *, directly: bool) -> None:
    web = web_of(webs, directly=directly)
    client = Client(web, VERSION, "")
    webs.taken.clear()

    refused = await client.post(plain("echo"))

    assert refused[0]["status"] == 400
    assert not webs.taken


async def test_unsendable_response_fails_alone(webs: Webs) -> None:
    client = await Client.of(webs.direct)

    class Broken(list[Message]):
        def append(self, entry: Message) -> None:
            raise OSError("on purpose")

    with pytest.raises(OSError, match="on purpose"):
        await client.post(plain("echo"), sent=Broken())

    assert b"after" in (await client.post(plain("echo", {"value": "after"})))[1]["body"]


async def test_silent_call_keeps_connection_alive(webs: Webs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_calls, "_PING_S", 0.05)
    monkeypatch.setattr(tool_calls, "_PATIENCE_S", 0.0)
    client, sent = await Client.of(webs.direct), list[Message]()

    async with running(webs, client, sent=sent):
        assert await becomes(lambda: len(sent) > 2)

    assert sent[0]["status"] == 200
    assert sent[1]["body"].startswith(b": ping - ")
    assert sent[1]["body"].endswith(b"\r\n\r\n")


TOKENS = {user: f"{user}-{uuid.uuid4().hex}" for user in ("ann", "bob")}


@pytest.fixture(scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Webs]:
    """Both applications, of a server whose users have a token each."""
    folder: Path = tmp_path_factory.mktemp("guarded")
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps({token: f"t-{user}-{HOME.name[-6:]}" for user, token in TOKENS.items()}))
    tokens.chmod(0o600)
    auth = Auth(kind="static", tokens_file=tokens)
    async with opened_in(folder, user=None, auth=auth) as opened:
        yield opened


def login(user: str) -> tuple[str, str]:
    return ("authorization", f"Bearer {TOKENS[user]}")


@BOTH
async def test_session_belongs_to_its_owner_alone(guarded: Webs, *, directly: bool) -> None:
    web = web_of(guarded, directly=directly)
    anns = await Client.of(web, VERSION, login("ann"))
    as_bob = Client(web, VERSION, anns.session, (login("bob"),))
    as_nobody = Client(web, VERSION, anns.session)
    guarded.taken.clear()

    by_bob = await as_bob.post(plain("echo", {"value": "taken"}))
    by_nobody = await as_nobody.post(plain("echo", {"value": "taken"}))
    unknown = await Client(web, VERSION, "0" * 32, (login("bob"),)).post(plain("echo"))
    before = list(guarded.taken)
    own = await anns.post(plain("echo", {"value": "own"}))

    assert before == []
    assert bool(guarded.taken) == directly
    assert (by_bob[0]["status"], by_nobody[0]["status"]) == (404, 401)
    assert whole(by_bob, anns.session) == whole(unknown, anns.session)
    assert b"own" in own[1]["body"]


@BOTH
async def test_tokenless_session_rejects_request_with_token(guarded: Webs, *, directly: bool) -> None:
    web = web_of(guarded, directly=directly)
    anns = await Client.of(web, VERSION, login("ann"))
    await anns.post(None, method="DELETE")
    guarded.taken.clear()

    again = await anns.post(plain("echo", {"value": "again"}))

    assert again[0]["status"] == 404
    assert not guarded.taken
