"""No event carries bytes, wherever a tool or its caller puts them; what is shown meanwhile can be read."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support import open_toolset, request

from runner.call import execute
from runner.steps.light_events import without_bytes
from runner.toolset.toolset import Toolset
from runner.users.identity import User

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

BYTES = bytes(range(256)) * 20
ENCODED = base64.b64encode(BYTES).decode()
PAGE = f"<h1>half</h1><img src='data:image/png;base64,{ENCODED}'>"
FILE = '''
import json
from fastmcp import Context, FastMCP

mcp = FastMCP("shows")


@mcp.tool
async def everywhere(ctx: Context, encoded: str) -> dict:
    """Put bytes wherever an event could carry them."""
    entry = {"name": "so-far.png", "b64": encoded, "mime": "image/png"}
    page = f"<h1>half</h1><img src='data:image/png;base64,{encoded}'>"
    await ctx.report_progress(1, 3, "MCP_UPDATE:" + json.dumps({"type": "artifacts", "artifacts": [entry]}))
    await ctx.report_progress(2, 3, "MCP_UPDATE:" + json.dumps({"type": "canvas_update", "content": page}))
    await ctx.report_progress(3, 3, "at " + encoded)
    await ctx.info("found " + encoded)
    display = {"notification": "made " + encoded}
    return {"results": 1, "artifacts": [entry], "deferred_artifacts": [], "display": display}
'''


@pytest.fixture(scope="module")
async def toolset(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Toolset]:
    folder = tmp_path_factory.mktemp("shows")
    (folder / "shows.py").write_text(FILE)
    async with open_toolset(folder / "shows.py", folder) as it:
        yield it


async def read(toolset: Toolset, user: str, uri: str) -> bytes:
    files = toolset.files(User(user))
    record = await files.by_id(uri.removeprefix("artifact://"))
    assert record is not None
    async with files.open(record) as content:
        return b"".join([part async for part in content])


async def test_events_hold_references_in_place_of_bytes(toolset: Toolset, user: str, tmp_path: Path) -> None:
    with toolset.events.subscribe(user=user) as listening:
        asked = request(user, "everywhere", {"encoded": ENCODED})
        await execute(toolset, asked)
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
    told = {key: file[key] for key in file if key not in ("uri", "sha256")}
    assert told == {"name": "so-far.png", "mime": "image/png", "size": len(BYTES)}
    assert await read(toolset, user, file["uri"]) == BYTES
    assert (await read(toolset, user, by_type["canvas_content"]["content"]["uri"])).decode() == PAGE


async def test_what_is_shown_meanwhile_is_no_file_of_the_user(toolset: Toolset, user: str) -> None:
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
def test_a_long_run_of_base64_becomes_a_word_and_nothing_else_does(value: Any, left: Any) -> None:
    assert without_bytes(value) == left
