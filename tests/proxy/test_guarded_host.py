"""Tool files behind the guard: `runner serve` to a client, and the commands from outside."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from proxying import BARE
from support import ROOT, environment_in, settings_in

from runner.server.host import make_host
from runner.toolset.toolset import Toolset
from runner.users.identity import User

pytestmark = [pytest.mark.needs_npm, pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

SOURCE = """
import base64
from fastmcp import FastMCP
mcp = FastMCP("long")

@mcp.tool
def rows(count: int) -> dict:
    return {"rows": [{"n": n, "text": "t" * 80} for n in range(count)]}

@mcp.tool
def text(chars: int) -> str:
    return "word " * (chars // 5)

@mcp.tool
def pdf() -> dict:
    content = base64.b64encode(b"%PDF-1.7 " + bytes(range(256)) * 20).decode()
    return {"results": {"name": "r", "content": content}}

@mcp.tool(meta={"ui": {"visibility": ["app"]}})
def page_pdf() -> dict:
    return {"content": base64.b64encode(b"%PDF-1.7 " + bytes(range(256)) * 2000).decode()}

@mcp.tool
def artifact_info(id: str) -> str:
    return "the file's own"
"""

ERAS = pytest.mark.parametrize("mode", ["auto", "legacy"])


@pytest.fixture
def served(folder: Path, user: str) -> Callable[..., Any]:
    @asynccontextmanager
    async def serve(mode: str, **settings: Any) -> AsyncIterator[Any]:
        file = folder / "tools.py"
        file.write_text(SOURCE)
        effective = settings_in(folder, user=user, **settings)
        async with (
            Toolset.open(effective, [str(file)], user=User(user)) as toolset,
            Client(make_host(toolset, transport="stdio", download_url=None), mode=mode) as client,
        ):
            yield client

    return serve


@ERAS
async def test_widget_cannot_call_our_own_tools(mode: str, served: Any) -> None:
    async with served(mode, resource_tools=True) as client:
        await client.call_tool("text", {"chars": 60_000})
        for name in ("artifact_read", "long.resources_list"):
            made = {"meta": {"toolcell/widget": "asked"}, "raise_on_error": False}
            marked = await client.call_tool(name, {"id": "x"}, **made)
            # The control: a client of its own is not refused for that.
            unmarked = await client.call_tool(name, {"id": "x"}, raise_on_error=False)

            assert marked.is_error
            assert "visibility" in marked.content[0].text
            assert "visibility" not in unmarked.content[0].text


@ERAS
async def test_long_and_binary_results_reach_model_as_references(mode: str, served: Any) -> None:
    async with served(mode) as client:
        listed = [tool.name for tool in await client.list_tools()]
        rows = await client.call_tool_mcp("rows", {"count": 2000})
        text = await client.call_tool("text", {"chars": 60_000})
        pdf = await client.call_tool_mcp("pdf", {})
        reference = json.loads(pdf.content[0].text)["results"]["content"]["artifact"]
        fetched = await client.read_resource(f"artifact://{reference['id']}")
        own = await client.call_tool("artifact_info", {"id": "x"})
        part = await client.call_tool(
            "artifact_read", {"id": _reference(text.content[0].text)["id"], "length": 10}
        )

    assert all(len(it.model_dump_json()) < 60_000 for it in (rows, pdf))
    assert json.loads(rows.content[0].text)["shape"]["keys"] == ["rows"]
    assert rows.structured_content["rows"]["shape"]["rows"] == 2000
    assert isinstance(text.structured_content["result"], str)
    assert len(text.structured_content["result"]) < 1000
    assert fetched[0].blob is not None
    assert listed[-2:] == ["artifact_read", "artifact_search"]
    assert listed.count("artifact_info") == 1
    assert "artifact_read" in json.loads(text.content[0].text)["read"]
    assert own.data == "the file's own"
    assert part.structured_content["text"] == "word word "


def _reference(text: str) -> Any:
    return json.loads(text)["artifact"]


@ERAS
async def test_result_for_page_passes_only_to_widget(mode: str, served: Any) -> None:
    async with served(mode) as client:
        marked = await client.call_tool("page_pdf", {}, meta={"toolcell/widget": "asked"})
        # The control: a client that may ignore the visibility of tools.
        unmarked = await client.call_tool("page_pdf", {})

    assert len(marked.structured_content["content"]) > 600_000
    assert "artifact" in unmarked.structured_content["content"]


async def test_switch_removes_our_own_tools(served: Any) -> None:
    async with served("auto", extras="off") as client:
        text = await client.call_tool("text", {"chars": 60_000})
        names = [tool.name for tool in await client.list_tools()]
        missing = await client.call_tool("artifact_read", {"id": "x"}, raise_on_error=False)

    assert "artifact_read" not in names
    assert "artifact_read" not in json.loads(text.content[0].text)["read"]
    assert missing.is_error


async def test_guard_settings_come_from_their_section(served: Any) -> None:
    async with served("auto", output_guard={"tools": {"text": {"max_inline_size": 100_000}}}) as client:
        whole = await client.call_tool("text", {"chars": 20_000})

    assert len(whole.data) == 20_000


async def proxy_command(folder: Path, user: str, *arguments: str) -> Any:
    environment = {
        "PATH": "/usr/bin:/bin",
        "RUNNER_STATE_DIR": str(folder / "state"),
        "RUNNER_STORE": (folder / "store").as_uri(),
        "PYTHONPATH": str(ROOT),
    }
    command = ["-m", "runner.cli.app", "proxy", "--user", user, *arguments]
    return Client(
        StdioTransport(sys.executable, command, env=environment, cwd=str(folder), keep_alive=False),
        mode="legacy",
    )


async def test_guard_command_fronts_servers_of_file(folder: Path, user: str) -> None:
    gone = "http://127.0.0.1:9/mcp"
    servers = {"bare": {"command": sys.executable, "args": [BARE.name], "cwd": str(BARE.parent)}}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {**servers, "gone": {"url": gone}}}))

    async with await proxy_command(folder, user, "mcp.json") as client:
        names = [tool.name for tool in await client.list_tools()]
        home = (await client.call_tool("bare_surroundings")).content[0].text

    assert "bare_pid" in names
    assert user in home


def test_guard_command_explains_fault_and_exits_2(folder: Path, user: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "runner.cli.app", "proxy", "--user", user, "--", "npx", "some-server"],
        env=environment_in(folder),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=180,
        stdin=subprocess.DEVNULL,
    )

    assert (ended.returncode, ended.stdout) == (2, "")
    assert "Start with --allow-fetch" in ended.stderr
    assert "Traceback" not in ended.stderr
