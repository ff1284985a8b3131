"""A fault of the proxy's own, and errors of servers behind it, as clients are told them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from mcp.shared.exceptions import MCPError
from proxying import over_stdio, proxied, upstreams_for

from runner.proxy.server import make_proxy
from runner.proxy.upstreams import Upstreams
from runner.worker.internals.low_level import low_level

pytestmark = pytest.mark.anyio

SECRET = "/var/lib/toolcell/state/secret.json"
ERAS = pytest.mark.parametrize("mode", ["legacy", "auto"])
SERVER = """
import os
from fastmcp import FastMCP

mcp = FastMCP("paths")


@mcp.tool
def names_its_file() -> str:
    raise RuntimeError(f"something is wrong in {os.path.abspath(__file__)}")


@mcp.tool
def dies() -> str:
    os._exit(3)


mcp.run(show_banner=False)
"""


def fail(*_arguments: Any) -> Any:
    raise SystemError(f"AST constructor recursion depth mismatch in {SECRET}")


def is_harmless(answer: str, logged: str) -> bool:
    """Return whether an answer has the id of the logged fault, and none of its text."""
    has_id = re.search(r"\b[0-9a-f]{12}\b", answer) is not None
    return has_id and SECRET not in answer and "AST" not in answer and SECRET in logged


@ERAS
async def test_internal_error_in_proxied_call_returns_contract_error(
    folder: Path, user: str, mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with proxied(folder, user, over_stdio(), mode=mode) as client:
        fine = await client.call_tool_mcp("remember", {"value": 1})
        monkeypatch.setattr(Upstreams, "upstream", fail)
        answer = await client.call_tool_mcp("remember", {"value": 1})

    meta = json.loads(answer.content[0].text)["meta_data"]
    assert not fine.is_error
    assert answer.is_error
    assert (meta["error_code"], meta["reason"], meta["retryable"]) == ("E_INTERNAL", "InternalError", True)
    assert "tell the operator this id" in meta["details"]["suggestion"]
    assert is_harmless(answer.model_dump_json(), caplog.text)


@ERAS
async def test_internal_error_in_other_proxied_request_is_described(
    folder: Path, user: str, mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with upstreams_for(folder, user, over_stdio()) as upstreams:
        proxy = make_proxy(upstreams, transport="stdio")
        async with Client(proxy, mode=mode) as client:
            with monkeypatch.context() as patched:
                patched.setattr(Upstreams, "upstream", fail)
                with pytest.raises(MCPError) as masked:
                    await client.list_prompts_mcp()
        # Control: without the outermost middleware, the earlier era shows the fault.
        low_level(proxy).middleware.pop(0)
        async with Client(proxy, mode="legacy") as client:
            with monkeypatch.context() as patched:
                patched.setattr(Upstreams, "upstream", fail)
                with pytest.raises(MCPError) as unmasked:
                    await client.list_prompts_mcp()

    answer = masked.value.error
    assert answer.code == -32603
    assert is_harmless(f"{answer.message} {answer.data}", caplog.text)
    assert SECRET in unmasked.value.error.message


@ERAS
async def test_server_path_hidden_from_client_error_and_logged(
    folder: Path, user: str, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = folder / "server" / "paths.py"
    server.parent.mkdir()
    server.write_text(SERVER)
    async with proxied(folder, user, over_stdio("paths", server), mode=mode) as client:
        named = await client.call_tool_mcp("names_its_file", {})
        died = await client.call_tool_mcp("dies", {})

    assert named.is_error
    assert died.is_error
    assert "{tool_folder}/paths.py" in named.content[0].text
    assert str(folder) not in named.model_dump_json() + died.model_dump_json()
    assert any(str(server) in str(vars(record).get("left_out")) for record in caplog.records)
