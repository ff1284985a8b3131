"""A fault of our own reaches a client as an error with an id and advice; its text reaches the log only."""

import json
import logging
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client, FastMCP
from fastmcp.client.transports import StdioTransport
from mcp.shared.exceptions import MCPError
from mcp_requests import META
from mcp_types import CallToolResult, TextContent
from somebody import somebody
from starlette.testclient import TestClient
from support import environment_in, settings_in

from runner.files.my_files import MyFiles, open_library
from runner.http.context import Site
from runner.protocol.tool_calls import ToolCall
from runner.server.host import make_host
from runner.server.web import build_app
from runner.store.store import BlobStore
from runner.toolset.toolset import Toolset
from runner.users.capability_tokens import Tokens
from runner.users.events import Events
from runner.worker.internals.low_level import low_level

pytestmark = pytest.mark.anyio

KEEPER = Path(__file__).parents[1] / "tools" / "keeper.py"
SECRET = "/var/lib/toolcell/state/secret.json"
ERAS = pytest.mark.parametrize("mode", ["legacy", "auto"])
CALL_ID = re.compile(r"\b[0-9a-f]{12}\b")


class Failing(BlobStore):
    """A store with a mistake in it."""

    async def find(self, name: str, *, scope: Any) -> Any:
        raise SystemError(f"AST constructor recursion depth mismatch in {SECRET}")

    async def list(self, *, scope: Any) -> Any:
        raise SystemError(f"AST constructor recursion depth mismatch in {SECRET}")


@pytest.fixture
async def toolset(tmp_path: Path) -> AsyncIterator[Toolset]:
    (tmp_path / "homes").mkdir(mode=0o700)
    settings = settings_in(tmp_path, user="ann", homes=tmp_path / "homes", isolation="process")
    async with Toolset.open(settings, [str(KEEPER)]) as toolset:
        toolset.library = replace(toolset.library, store=Failing())
        yield toolset


@asynccontextmanager
async def client_of(app: "FastMCP[Any]", mode: str) -> "AsyncIterator[Client[Any]]":
    async with Client(app, mode=mode) as client:
        yield client


def text_of(answer: CallToolResult) -> str:
    (block, *_) = answer.content
    assert isinstance(block, TextContent)
    return block.text


def is_harmless(text: str, logged: str) -> bool:
    """Return whether an answer names the id under which the log has the fault, and nothing of the fault."""
    ids = CALL_ID.findall(text)
    return bool(ids) and SECRET not in text and "AST" not in text and SECRET in logged


@ERAS
async def test_internal_error_in_call_returns_contract_error(
    toolset: Toolset, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with client_of(make_host(toolset, transport="stdio", download_url=None), mode) as client:
        answer = await client.call_tool_mcp("reads", {"filename": "data.csv"})

    meta = json.loads(text_of(answer))["meta_data"]
    assert answer.is_error
    assert (meta["error_code"], meta["reason"], meta["retryable"]) == ("E_INTERNAL", "InternalError", True)
    assert "tell the operator this id" in meta["details"]["suggestion"]
    assert is_harmless(answer.model_dump_json(), caplog.text)


async def test_direct_call_internal_error_answered_alike(
    toolset: Toolset, caplog: pytest.LogCaptureFixture
) -> None:
    async def write(message: Any) -> None:
        return None

    host = make_host(toolset, transport="stdio", download_url=None)
    params = {"name": "reads", "arguments": {"filename": "data.csv"}, "_meta": META}
    answer = await host.direct.answer(ToolCall(id=7, params=params, write=write))

    assert json.loads(answer["content"][0]["text"])["meta_data"]["error_code"] == "E_INTERNAL"
    assert is_harmless(json.dumps(answer), caplog.text)


@ERAS
async def test_internal_error_in_other_request_returns_described_error(
    toolset: Toolset, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    host = make_host(toolset, transport="stdio", download_url=None)
    async with client_of(host, mode) as client:
        with pytest.raises(MCPError) as error:
            await client.read_resource("runner://files")
    answer = error.value.error
    # The control: without what stands around all handlers, the earlier era says what we keep to ourselves.
    low_level(host).middleware.pop(0)
    async with client_of(host, "legacy") as client:
        with pytest.raises(MCPError) as untold:
            await client.read_resource("runner://files")

    assert answer.code == -32603
    assert is_harmless(f"{answer.message} {answer.data}", caplog.text)
    assert (untold.value.error.code, SECRET in untold.value.error.message) == (0, True)


@pytest.mark.parametrize("path", ["/api/files", "/nowhere/at/all"])
async def test_page_internal_error_answered_in_json(
    tmp_path: Path, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_in(tmp_path, user="ann")
    library = replace(open_library(settings), store=Failing())
    tokens = Tokens(settings.state_dir / "tokens.json")
    site = Site(settings=settings, library=library, events=Events(), tokens=tokens)
    web = build_app(FastMCP("test"), site)
    answer = TestClient(web, base_url="http://127.0.0.1:8000", raise_server_exceptions=False).get(path)

    if path == "/api/files":
        assert answer.status_code == 500
        assert is_harmless(answer.json()["error"], caplog.text)
    else:
        # The control: an error that is not ours is answered as usual.
        assert answer.status_code == 404
        assert logging.getLogger("runner.contract.unexpected_errors").name not in caplog.text


async def test_failed_hint_hides_no_error(
    toolset: Toolset, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(*_: Any) -> Any:
        raise SystemError(f"AST constructor recursion depth mismatch in {SECRET}")

    toolset.library = replace(toolset.library, store=BlobStore())
    monkeypatch.setattr(MyFiles, "nearest", fails)
    async with client_of(make_host(toolset, transport="stdio", download_url=None), "auto") as client:
        answer = await client.call_tool_mcp("reads", {"filename": "data.csv"})

    assert json.loads(text_of(answer))["meta_data"]["error_code"] == "E_FILE_NOT_FOUND"
    assert SECRET not in answer.model_dump_json()
    assert SECRET in caplog.text


FAILING = f"""
from runner.cli.app import main
from runner.files.my_files import MyFiles


async def fails(*_):
    raise SystemError("AST constructor recursion depth mismatch in {SECRET}")

MyFiles.find = fails
main()
"""


@ERAS
async def test_stdio_client_internal_error_answered_alike(tmp_path: Path, mode: str) -> None:
    command, logged = tmp_path / "failing.py", tmp_path / "log"
    command.write_text(FAILING)
    with somebody() as user:
        way = StdioTransport(
            sys.executable,
            [str(command), "serve", str(KEEPER), "--user", user],
            env=environment_in(tmp_path),
            keep_alive=False,
            log_file=logged,
        )
        async with Client(way, mode=mode) as client:
            answer = await client.call_tool_mcp("reads", {"filename": "data.csv"})
            after = await client.call_tool_mcp("note", {"name": "a", "text": "fine"})

    assert json.loads(text_of(answer))["meta_data"]["error_code"] == "E_INTERNAL"
    assert is_harmless(answer.model_dump_json(), logged.read_text())
    assert not after.is_error
