import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from asgi_support import Answer, asking
from site_support import TOKENS, Served

from runner.http import events as stream
from runner.store.protocol import Origin
from runner.users.events import LISTENERS_PER_USER

pytestmark = pytest.mark.anyio


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served.at(tmp_path)


@asynccontextmanager
async def listening(served: Served, user: str = "ann", address: str = "/events") -> AsyncIterator[Answer]:
    headers = {"authorization": f"Bearer {TOKENS[user]}"}
    async with asking(served.web, "GET", address, headers=headers) as answer:
        if answer.status == 200:
            await answer.until(b"listening\n\n")
        yield answer


async def events(answer: Answer, last: str) -> list[dict[str, Any]]:
    """Return what comes up to the first event of that type."""
    text = ""
    while f"event: {last}\n" not in text or not text.endswith("\n\n"):
        piece = await answer.pieces.get()
        assert piece is not None, text
        text += piece.decode()
    frames = [frame.split("\n") for frame in text.strip().split("\n\n")]
    events_read = [
        (name, json.loads(data.removeprefix("data: "))) for name, data in frames if name.startswith("event")
    ]
    assert [name for name, _ in events_read] == [f"event: {event['type']}" for _, event in events_read]
    return [event for _, event in events_read]


async def test_head_of_the_stream_ends(served: Served) -> None:
    headers = {"authorization": f"Bearer {TOKENS['ann']}"}
    async with listening(served) as opened, asking(served.web, "HEAD", "/events", headers=headers) as answer:
        statuses = (opened.status, answer.status)

    assert statuses == (200, 405)


async def test_stored_file_announced_by_reference(served: Served) -> None:
    async with listening(served) as answer:
        record = await served.files().put(b"%PDF-content", name="a.pdf", origin=Origin.GENERATED)
        messages = await events(answer, "artifact_stored")

    assert dict(answer.headers)["content-type"].startswith("text/event-stream")
    assert dict(answer.headers)["cache-control"] == "no-store"
    assert messages == [
        {
            "type": "artifact_stored",
            "artifact": record.ref.model_dump(mode="json"),
            "uri": f"artifact://{record.id}",
            "origin": "generated",
            "content_type": "application/pdf",
            "created": record.created.isoformat(),
            "expires_at": None,
            "pending": False,
            "of_session": False,
        }
    ]
    assert "%PDF" not in json.dumps(messages)


async def test_upload_announced_as_files_of_result(served: Served) -> None:
    async with listening(served) as answer:
        await served.files().put(b"a,b\n1,2\n", name="a.csv", origin=Origin.UPLOADED)
        stored, update = await events(answer, "files_update")

    assert update == {
        "type": "files_update",
        "files": [
            {
                "name": "a.csv",
                "mime": "text/csv",
                "size": 8,
                "uri": stored["uri"],
                "viewer": "code",
                "category": "dataset",
                "showable": True,
            }
        ],
        "display": {"open": False},
    }


async def test_removed_file_announced(served: Served) -> None:
    record = await served.files().put(b"x", name="a.txt", origin=Origin.UPLOADED)

    async with listening(served) as answer:
        await served.files().remove("a.txt")
        messages = await events(answer, "artifact_removed")

    assert [(event["type"], event["uri"]) for event in messages] == [
        ("artifact_removed", f"artifact://{record.id}")
    ]


async def test_events_of_other_users_not_received(served: Served) -> None:
    async with listening(served, "bob") as bobs, listening(served) as anns:
        await served.files("ann").put(b"secret", name="secret of ann.txt", origin=Origin.GENERATED)
        own = await events(anns, "artifact_stored")
        await served.files("bob").put(b"mine", name="mine.txt", origin=Origin.GENERATED)
        messages = await events(bobs, "artifact_stored")

    assert [event["artifact"]["filename"] for event in own] == ["secret of ann.txt"]
    assert [event["artifact"]["filename"] for event in messages] == ["mine.txt"]


async def test_stream_may_be_limited_to_one_session(tmp_path: Path) -> None:
    served = Served.at(tmp_path, persist_files_across_sessions=False)

    async with listening(served, address="/events?session=two") as two, listening(served) as both:
        for session in ("one", "two"):
            await served.files("ann", session).put(b"x", name=f"{session}.txt", origin=Origin.GENERATED)
        messages = await events(two, "artifact_stored")
        first = await events(both, "artifact_stored")

    assert [event["artifact"]["filename"] for event in messages] == ["two.txt"]
    assert [event["of_session"] for event in messages] == [True]
    assert [event["artifact"]["filename"] for event in first] == ["one.txt"]


async def test_slow_listener_receives_missed_event_count(served: Served) -> None:
    async with listening(served) as answer:
        for number in range(1003):
            served.site.events.publish({"type": "note", "number": number}, user="ann")
        first, second = await events(answer, "note")

    # One was taken before the others came, or none: the stream may wait for its turn.
    assert first["type"] == "events_missed"
    assert second["number"] == first["count"]


async def test_quiet_stream_sends_keepalives(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_BEAT_S", 0.01)

    async with listening(served) as answer:
        beat = await answer.pieces.get()

    assert beat == b":\n\n"


async def test_quiet_stream_reports_missed_events(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a host of a fleet was cut off: perhaps no other event comes for hours."""
    monkeypatch.setattr(stream, "_BEAT_S", 0.01)

    async with listening(served) as answer:
        served.site.events.note_missed()
        while (piece := await answer.pieces.get()) == b":\n\n":
            pass

    assert piece is not None
    assert piece.startswith(b"event: events_missed\n"), piece


async def test_disconnected_client_no_longer_subscribed(served: Served) -> None:
    async with listening(served):
        during = served.site.events.listeners(user="ann")

    assert (during, served.site.events.listeners(user="ann")) == (1, 0)


async def test_streams_end_when_server_stops(served: Served) -> None:
    async with listening(served) as answer:
        served.site.events.close()
        rest = await answer.whole()

    assert rest == b""


async def test_streams_of_user_bounded(served: Served) -> None:
    from contextlib import ExitStack

    with ExitStack() as stack:
        for _ in range(LISTENERS_PER_USER):
            stack.enter_context(served.site.events.subscribe(user="ann"))
        async with listening(served) as refused, listening(served, "bob") as fine:
            statuses = (refused.status, fine.status)

    assert statuses == (429, 200)
