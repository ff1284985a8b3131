import base64
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import TOOLS, Listening, call, error_code, open_toolset, request

from runner.call import execute
from runner.steps.updates import without_bytes
from runner.store.protocol import Origin
from runner.toolset.toolset import Toolset
from runner.users.identity import User

LINK = re.compile(r"(https?://[^/]+)?/api/files/download/art_[0-9a-f]{12}\?token=[\w.-]+")
BYTES = bytes(range(256)) * 20
ENCODED = base64.b64encode(BYTES).decode()
PAGE = f"<h1>half</h1><img src='data:image/png;base64,{ENCODED}'>"

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]


@pytest.fixture(scope="module")
async def toolset(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Toolset]:
    folder = tmp_path_factory.mktemp("events")
    async with open_toolset(TOOLS / "updates.py", folder, public_url="https://tools.example/") as it:
        yield it


async def upload(toolset: Toolset, user: str, name: str) -> None:
    await toolset.files(User(user)).put(b"words", name=name, origin=Origin.UPLOADED)


async def test_interface_receives_whole_call_in_order(toolset: Toolset, user: str) -> None:
    await upload(toolset, user, "in.txt")
    client = Listening()

    with toolset.events.subscribe(user=user, session="s") as listening:
        await execute(toolset, request(user, "draws", {"filename": "in.txt"}, client))
        listening.close()
        events = [event async for event in listening]

    assert [event["type"] for event in events] == [
        "tool_start",
        "canvas_content",
        "tool_progress",
        "artifact_stored",
        "files_update",
        "canvas_files",
        "notification",
    ]
    assert events[0]["arguments"] == {"filename": "in.txt", "username": user}
    assert events[1]["content"] == "<h1>half</h1>"
    # A file is stored for the user, whichever call made it.
    of_call = [event for event in events if event["type"] != "artifact_stored"]
    assert {event["tool"] for event in of_call} == {"draws"}
    assert len({event["call"] for event in of_call}) == 1
    assert [params.get("message") for _method, params in client.notifications] == ["half done"]


async def test_call_events_reach_no_other_user(toolset: Toolset, user: str) -> None:
    await upload(toolset, user, "in.txt")

    with toolset.events.subscribe(user=f"{user}-2") as others, toolset.events.subscribe(user=user) as own:
        await call(toolset, user, "draws", filename="in.txt")
        others.close()
        own.close()

        assert [event async for event in others] == []
        assert [event async for event in own] != []


async def test_file_names_become_links_and_filename_a_path(toolset: Toolset, user: str) -> None:
    await upload(toolset, user, "a.txt")

    completed = await call(toolset, user, "echoes", filename="a.txt", file_names=["a.txt", "none.txt"])

    path, (link, unknown), _note = results(completed)
    assert path == f"/tmp/{user}/input_files/a.txt"
    assert LINK.fullmatch(link)
    assert unknown == "none.txt"
    assert (
        toolset.links.tokens.verify(
            link.partition("token=")[2],
            purpose="download",
            key=link.partition("download/")[2].partition("?")[0],
            now=toolset.links.clock(),
        )
        == user
    )


async def test_filename_is_link_by_setting(user: str, tmp_path: Path) -> None:
    async with open_toolset(TOOLS / "updates.py", tmp_path, file_delivery="url") as toolset:
        await upload(toolset, user, "a.txt")

        with toolset.events.subscribe(user=user) as listening:
            completed = await call(
                toolset, user, "echoes", filename="a.txt", file_names=[], note="/x?token=t.t"
            )
            listening.close()
            (start,) = [event async for event in listening]

    assert LINK.fullmatch(results(completed)[0])
    assert start["arguments"] == {"filename": "a.txt", "file_names": [], "note": "/x"}


async def test_truncated_argument_text_is_repaired(toolset: Toolset, user: str) -> None:
    tool_call = request(user, "echoes", {})
    text = '{"filename": "new.txt", "file_names": ["other.txt", "o'

    completed = await execute(toolset, replace(tool_call, params={**tool_call.params, "arguments": text}))

    assert results(completed) == ["new.txt", ["other.txt", "o"], ""]


@pytest.mark.parametrize("arguments", ["no json", '["a"]', ["a"], 5])
async def test_non_object_arguments_refused(toolset: Toolset, user: str, arguments: object) -> None:
    tool_call = request(user, "echoes", {})

    completed = await execute(
        toolset, replace(tool_call, params={**tool_call.params, "arguments": arguments})
    )

    assert error_code(completed) == "E_INVALID_ARGUMENT"


async def test_undeclared_helper_argument_not_sent(toolset: Toolset, user: str) -> None:
    helped = await call(
        toolset, user, "echoes", filename="n", file_names=[], original_filename="n", username="x"
    )
    mistaken = await call(toolset, user, "echoes", filename="n", file_names=[], nota="n")

    assert results(helped) == ["n", [], ""]
    assert error_code(mistaken) == "E_INVALID_ARGUMENT"


async def read(toolset: Toolset, user: str, uri: str) -> bytes:
    files = toolset.files(User(user))
    record = await files.by_id(uri.removeprefix("artifact://"))
    assert record is not None
    async with files.open(record) as content:
        return b"".join([part async for part in content])


async def test_events_hold_references_in_place_of_bytes(toolset: Toolset, user: str, tmp_path: Path) -> None:
    with toolset.events.subscribe(user=user) as listening:
        tool_call = request(user, "everywhere", {"encoded": ENCODED})
        await execute(toolset, tool_call)
        listening.close()
        events: list[Any] = [event async for event in listening]

    by_type = {event["type"]: event for event in events}
    assert set(by_type) >= {
        *("tool_start", "tool_progress", "tool_log", "progress_artifacts", "canvas_content"),
        *("artifact_stored", "files_update", "canvas_files", "notification"),
    }
    assert ENCODED[:1000] not in json.dumps(events)
    assert by_type["tool_start"]["arguments"]["encoded"] == f"[{len(ENCODED)} characters of base64]"
    (file,) = by_type["progress_artifacts"]["artifacts"]
    fields = {key: file[key] for key in file if key not in ("uri", "sha256")}
    assert fields == {"name": "so-far.png", "mime": "image/png", "size": len(BYTES)}
    assert await read(toolset, user, file["uri"]) == BYTES
    assert (await read(toolset, user, by_type["canvas_content"]["content"]["uri"])).decode() == PAGE


async def test_interim_content_is_not_a_user_file(toolset: Toolset, user: str) -> None:
    with toolset.events.subscribe(user=user):
        await execute(toolset, request(user, "everywhere", {"encoded": ENCODED}))

    names = [record.name for record in await toolset.files(User(user)).all()]
    assert names == ["so-far.png"]


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("short", "short"),
        ("word " * 1000, "word " * 1000),
        ("A" * 999, "A" * 999),
        ("x:" + "A" * 1000 + "==;", "x:[1002 characters of base64];"),
        (
            "<img src='data:image/png;base64,AAAA=='>",
            "<img src='data:image/png;base64,[6 characters of base64]'>",
        ),
        ([{"a": "A" * 2000}], [{"a": "[2000 characters of base64]"}]),
        (5, 5),
        (None, None),
    ],
)
def test_long_base64_run_replaced_by_word_only(value: Any, left: Any) -> None:
    assert without_bytes(value) == left


def results(completed: Any) -> Any:
    return completed.processed.value["results"]
