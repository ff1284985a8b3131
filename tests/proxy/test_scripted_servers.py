"""Servers whose handshake, errors and answers differ from those of the usual libraries."""

import asyncio
import base64
import json
import sys
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from mcp.client import advertise
from mcp.shared.exceptions import MCPError
from proxying import RawSession, proxied, unreachable

from runner.proxy.remote import Server
from runner.proxy.targets import Target
from runner.toolset.catalog import ToolSpec

pytestmark = [pytest.mark.release, pytest.mark.anyio]

SERVER = Path(__file__).parent / "scripted.py"
MODES = pytest.mark.parametrize("mode", ["auto", "legacy"])


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


def scripted(folder: Path, **script: Any) -> Target:
    """Return a server that follows a script, and records its starts and calls in `log` of its folder."""
    place = folder / "lent"
    place.mkdir(exist_ok=True)
    script_text = json.dumps({"log": str(place / "log"), **script})
    command = (sys.executable, str(SERVER), script_text)
    return Target(name="scripted", command=command, folder=SERVER.parent, allow_write=(place,))


def noted(folder: Path) -> list[str]:
    """Return what the processes of the server have noted, in order, without their ids."""
    return [line.split()[1] for line in (folder / "lent" / "log").read_text().splitlines()]


@MODES
@pytest.mark.parametrize("exits_on", [[], ["server/discover"]], ids=["none", "discover"])
async def test_server_that_exits_on_discover_is_started_again_once(
    folder: Path, user: str, mode: str, exits_on: list[str]
) -> None:
    # For a client with sessions `initialize` is sent first.
    starts = 2 if exits_on and mode == "auto" else 1
    target = scripted(folder, tools=[tool("find")], exits_on=exits_on)
    async with proxied(folder, user, target, mode=mode) as client:
        found = await client.call_tool("find")

    assert int(found.content[0].text)
    assert noted(folder) == [*["start"] * starts, "find"]


WORDS = [
    {"code": -32602, "message": "Session not found: x"},
    {"code": -32000, "message": "Connection closed"},
    {"code": -32600, "message": "Session terminated"},
    {"code": -32000, "message": "no such row"},
]


@pytest.mark.parametrize("error", WORDS, ids=str)
@MODES
async def test_error_with_words_of_a_lost_connection_reaches_client(
    folder: Path, user: str, mode: str, error: dict[str, Any]
) -> None:
    target = scripted(folder, tools=[tool("run"), tool("next")], answers={"run": {"error": error}})
    async with proxied(folder, user, target, mode=mode) as client:
        with pytest.raises(MCPError) as refused:
            await client.call_tool("run")
        await client.call_tool("next")

    assert (refused.value.error.code, refused.value.error.message) == (error["code"], error["message"])
    assert noted(folder)[-3:] == ["start", "run", "next"]


@pytest.mark.parametrize(
    ("hints", "calls"), [({}, 1), ({"idempotentHint": True}, 2)], ids=["plain", "idempotent"]
)
async def test_call_that_ends_its_server_is_repeated_if_idempotent(
    folder: Path, user: str, hints: dict[str, bool], calls: int
) -> None:
    tools = [tool("ends", annotations=hints), tool("pid")]
    async with proxied(folder, user, scripted(folder, tools=tools, exits_in=["ends"])) as client:
        await client.list_tools()
        ended = await client.call_tool_mcp("ends", {})
        after = await client.call_tool_mcp("pid", {})

    about = json.loads(ended.content[0].text)["meta_data"]
    assert about["error_code"] == "E_CRASHED"
    assert about["details"] == {"status": "exit status 1", "output": "ends ended it"}
    assert "the command ended (exit status 1), and is started at the next call" in ended.content[0].text
    assert not after.is_error
    assert noted(folder).count("ends") == calls


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('Content-Length: 40\r\n\r\n{"jsonrpc": "2.0", "id": 0, "result": {}}', "Content-Length: 40"),
        ('{\n  "jsonrpc": "2.0",\n  "id": 0,\n  "result": {}\n}', "{"),
    ],
    ids=["header", "indented"],
)
async def test_framing_other_than_lines_named_with_first_line(
    folder: Path, user: str, text: str, line: str
) -> None:
    why = await unreachable(folder, user, scripted(folder, writes=text))

    assert f"it wrote '{line}' to" in why
    assert "MCP requires each to be JSON on one line" in why


async def test_first_line_of_a_server_is_shown_without_secrets(folder: Path, user: str) -> None:
    key = "sk-live-0123456789abcdef"
    target = replace(scripted(folder, writes=f"{'.' * 90} {key}"), env={"API_KEY": key})

    why = await unreachable(folder, user, target)

    assert "it wrote '...." in why
    assert "sk-live" not in why


async def test_list_waits_for_slow_servers_at_once(folder: Path, user: str) -> None:
    slow = [
        replace(scripted(folder, tools=[tool("find")], lists_after_s=3), name=name)
        for name in ("one", "two", "three")
    ]
    async with proxied(folder, user, *slow, mode="legacy") as client:
        await client.list_tools()
        began = time.monotonic()
        listed = [each.name for each in await client.list_tools()]
        took_s = time.monotonic() - began

    assert listed[:3] == ["one_find", "two_find", "three_find"]
    assert 3 <= took_s < 6


@MODES
async def test_faulty_answers_are_repaired_or_reported(
    folder: Path, user: str, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    tools = [tool("bare"), tool("broken"), {"name": "odd", "inputSchema": {"type": "string"}}, tool("fine")]
    answers = {"bare": {"structuredContent": {"a": 1}}, "broken": [1]}
    async with proxied(folder, user, scripted(folder, tools=tools, answers=answers), mode=mode) as client:
        listed = [each.name for each in await client.list_tools()]
        bare = await client.call_tool_mcp("bare", {})
        broken = await client.call_tool_mcp("broken", {})
        fine = await client.call_tool_mcp("fine", {})

    meta = json.loads(broken.content[0].text)["meta_data"]
    assert listed[:3] == ["bare", "broken", "fine"]
    assert any("left out" in each.message and vars(each)["item"] == "odd" for each in caplog.records)
    assert (bare.structured_content, bare.content[0].text) == ({"a": 1}, '{"a": 1}')
    assert (meta["error_code"], meta["retryable"]) == ("E_INVALID_RESULT", False)
    assert "did not answer" not in broken.content[0].text
    assert int(fine.content[0].text)


@pytest.mark.parametrize("hangs", [True, False])
@MODES
async def test_command_that_does_not_stop_is_ended_after_cancel(
    folder: Path, user: str, mode: str, hangs: bool
) -> None:
    script = {"hangs_in": ["slow"]} if hangs else {"waits_in": ["slow"]}
    target = scripted(folder, tools=[tool("slow"), tool("next")], **script)
    working = asyncio.Event()

    async def progress(*_report: object) -> None:
        working.set()

    async with proxied(folder, user, target, mode=mode, idle_timeout_s=600) as client:
        slow = asyncio.create_task(client.call_tool("slow", progress_handler=progress))
        await working.wait()
        slow.cancel()
        await asyncio.wait({slow})
        after = await client.call_tool_mcp("next", {})

    assert not after.is_error
    assert noted(folder)[-3:] == (["slow", "start", "next"] if hangs else ["start", "slow", "next"])


async def test_large_page_for_host_passes_unchanged(folder: Path, user: str) -> None:
    target = scripted(folder, pages={"ui://page": 2_000_000, "note://page": 2_000_000})
    async with proxied(folder, user, target) as client:
        (page,) = await client.read_resource("ui://page")
        # The control: a model may read any other resource.
        (note,) = await client.read_resource("note://page")

    assert (page.uri, page.mime_type, len(page.text)) == ("ui://page", "text/html;profile=mcp-app", 2_000_000)
    assert "artifact" in json.loads(note.text)


@MODES
async def test_result_for_page_passes_only_to_clients_that_hide_it(
    folder: Path, user: str, mode: str
) -> None:
    content = base64.b64encode(b"%PDF-1.7\n" + bytes(range(256)) * 50).decode()
    wire = {"content": [{"type": "text", "text": "read"}], "structuredContent": {"bytes": content}}
    tools = [tool("read", _meta={"ui": {"visibility": ["app"]}}), tool("see")]
    target = scripted(folder, tools=tools, answers={"read": wire, "see": wire})
    hides = {"extensions": [advertise("io.modelcontextprotocol/ui")]}
    async with (
        proxied(folder, user, target, mode=mode, client=hides) as host,
        proxied(folder, user, target, mode=mode) as other,
    ):
        seen = [
            (await client.call_tool(name, meta=meta)).structured_content
            for client, name, meta in (
                (host, "read", None),
                (other, "read", {"toolcell/widget": "asked"}),
                (host, "see", None),
                (other, "read", None),
            )
        ]

    assert [value == {"bytes": content} for value in seen] == [True, True, False, False]


def test_tool_listed_for_models_never_counts_as_page_tool() -> None:
    server = Server(name="scripted")
    first, later = (
        ToolSpec.of(tool("read", _meta={"ui": {"visibility": seen}}), identity="username")
        for seen in (["model", "app"], ["app"])
    )

    assert Server(name="other").only_pages(later)
    assert not server.only_pages(first)
    assert not server.only_pages(later)


async def test_proxy_without_its_server_announces_own_version(folder: Path, user: str) -> None:
    async with proxied(folder, user, scripted(folder, writes="no JSON")) as client:
        about = client.session.server_info

    assert (about.name, about.version) == ("runner proxy", version("toolcell"))


@MODES
async def test_call_without_name_is_refused(folder: Path, user: str, mode: str) -> None:
    async with proxied(folder, user, scripted(folder, tools=[tool("None")]), mode=mode) as client:
        named = await RawSession(client).request("tools/call", {"name": "None"})
        with pytest.raises(MCPError, match=r"params\.name is missing"):
            await RawSession(client).request("tools/call", {"arguments": {}})

    assert not named.get("isError")
    assert noted(folder) == ["start", "None"]


async def test_start_in_progress_does_not_delay_stop(folder: Path, user: str) -> None:
    target = Target(name="slow", command=(sys.executable, "-c", "import time; time.sleep(600)"))
    async with asyncio.timeout(120), proxied(folder, user, target, load_timeout_s=600) as client:
        began = client.session.server_info.name

    assert began == "runner proxy"
