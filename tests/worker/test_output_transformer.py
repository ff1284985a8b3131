"""A tool file's own `output_transformer`, in plain FastMCP and through a confined worker."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client, FastMCP
from support import call, open_toolset

from runner.users.identity import User
from runner.worker.toolfile import load_tool_files

pytestmark = pytest.mark.anyio

SOURCE = """
import base64
import os
from fastmcp import FastMCP
from fastmcp.exceptions import ToolError
mcp = FastMCP("t")
PDF = b"%PDF-1.7 " + bytes(3000)

@mcp.tool
def export(username: str) -> dict:
    return {"content": base64.b64encode(PDF).decode(), "name": "w"}

@mcp.tool
def words() -> list[str]:
    return ["a", "b"]

@mcp.tool
def number() -> int:
    return 7

@mcp.tool
def plain() -> str:
    return "text"

@mcp.tool
def fails() -> str:
    raise ToolError("as always")

async def output_transformer(tool_name, result, ctx):
    if tool_name == "export":
        content = base64.b64decode(result["content"])
        ref = await ctx.artifacts.put_bytes(content, mime_type="application/pdf", filename="w.pdf")
        return {"artifact": ref, "summary": result["name"], "pid": os.getpid()}
    if tool_name == "words":
        return [*result, ctx.tool, str(ctx.server)]
    if tool_name == "number":
        raise ValueError("no idea")
    return None
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "transformed.py"
    path.write_text(SOURCE)
    return str(path)


async def called(file: str, tool: str, messages: list[str] | None = None) -> Any:
    async def receive(message: Any) -> None:
        if messages is not None:
            messages.append(str(message.data))

    server = load_tool_files([file])
    assert isinstance(server, FastMCP)
    async with Client(server, log_handler=receive) as client:
        return await client.call_tool_mcp(tool, {})


async def test_transformer_value_replaces_result(file: str) -> None:
    result = await called(file, "words")

    assert result.structured_content == {"result": ["a", "b", "words", "None"]}
    assert json.loads(result.content[0].text) == ["a", "b", "words", "None"]


async def test_transformer_none_leaves_result(file: str) -> None:
    result = await called(file, "plain")

    assert (result.content[0].text, result.structured_content) == ("text", {"result": "text"})


async def test_failing_transformer_keeps_result_and_warns_client(file: str) -> None:
    messages: list[str] = []

    result = await called(file, "number", messages)

    assert result.structured_content == {"result": 7}
    assert any("output_transformer failed" in text and "no idea" in text for text in messages)


async def test_tool_errors_bypass_transformer(file: str) -> None:
    result = await called(file, "fails")

    assert result.is_error
    assert "as always" in result.content[0].text


@pytest.mark.kernel
async def test_transformer_runs_in_worker_and_keeps_user_files(file: str, tmp_path: Path, user: str) -> None:
    tmp_path.chmod(0o700)

    async with open_toolset(Path(file), tmp_path, user) as toolset:
        completed = await call(toolset, user, "export")
        files = await toolset.files(User(user)).all()

    results = completed.processed.value["results"]
    assert (results["summary"], results["artifact"]["mime_type"]) == ("w", "application/pdf")
    assert results["pid"] != os.getpid()
    assert [record.name for record in files] == ["w.pdf"]
    assert "JVBERi0" not in json.dumps(results)
