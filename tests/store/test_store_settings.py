"""The settings `store = "memory:"` and `store = "none:"`, by the commands and over MCP."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from somebody import somebody
from support import ROOT

pytestmark = [pytest.mark.kernel, pytest.mark.release]

TOOLS = '''
import base64
from fastmcp import FastMCP

mcp = FastMCP("kept")


@mcp.tool
def make(size: int, later: bool = False) -> dict:
    """Make a file."""
    made = {"name": "made.bin", "b64": base64.b64encode(b"x" * size).decode(), "mime": "text/plain"}
    return {"results": size, "artifacts": [made]}


@mcp.tool
def read(filename: str) -> int:
    """Read a file."""
    return len(open(filename).read())
'''


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    file = tmp_path / "kept.py"
    file.write_text(TOOLS)
    return file


def environment(folder: Path, store: str, user: str, **more: str) -> dict[str, str]:
    variables = {key: value for key, value in os.environ.items() if not key.startswith("RUNNER_")}
    own = {"RUNNER_STATE_DIR": str(folder / "state"), "RUNNER_STORE": store, "RUNNER_USER": user}
    return {**variables, **own, **more, "PYTHONPATH": str(ROOT)}


def runner(
    folder: Path, store: str, user: str, *words: str, **more: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "runner", *words],
        env=environment(folder, store, user, **more),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


async def served(
    folder: Path, store: str, user: str, *, size: int = 5, **more: str
) -> tuple[list[Any], dict[str, Any], list[str]]:
    """Make a file over MCP; return the content, the structured content, and the names of all files."""
    transport = StdioTransport(
        sys.executable,
        ["-m", "runner", "serve", "kept.py"],
        env=environment(folder, store, user, **more),
        cwd=str(folder),
    )
    async with Client(transport) as client:
        made = await client.call_tool("make", {"size": size}, raise_on_error=False)
        listed = (await client.read_resource("runner://files"))[0].text
        return list(made.content), dict(made.structured_content or {}), listed.splitlines()[1:-1]


@pytest.mark.anyio
async def test_a_server_keeps_files_in_memory_and_nothing_on_disk(tools: Path, tmp_path: Path) -> None:
    """Source: S4-70 and S4-87."""
    with somebody() as user:
        content, value, listed = await served(tmp_path, "memory:", user)

    assert [block.type for block in content][-1] == "resource_link"
    assert value["artifacts"][0]["uri"].startswith("artifact://")
    assert len(listed) == 1
    assert listed[0].startswith("- made.bin")
    assert not [path for path in tmp_path.rglob("*") if path.name in ("index.sqlite", "journal", "made.bin")]


@pytest.mark.anyio
@pytest.mark.parametrize("delivery", ["auto", "reference"])
async def test_server_without_store_sends_files_inline_and_keeps_none(
    delivery: str, tools: Path, tmp_path: Path
) -> None:
    with somebody() as user:
        content, value, listed = await served(tmp_path, "none:", user, RUNNER_ARTIFACT_DELIVERY=delivery)

    assert base64.b64decode(value["artifacts"][0]["b64"]) == b"xxxxx"
    assert "resource_link" not in [block.type for block in content]
    assert listed == []


@pytest.mark.anyio
async def test_file_too_large_for_a_message_is_lost_and_not_referenced(tools: Path, tmp_path: Path) -> None:
    """As base64 it takes more than the 900,000 bytes of a message, and less than the limit for one file."""
    with somebody() as user:
        result = await served(tmp_path, "memory:", user, size=700_000)
        content, value, _ = await served(tmp_path, "none:", user, size=700_000)

    assert result[1]["artifacts"][0]["uri"].startswith("artifact://")
    (refused,) = value["meta_data"]["artifact_errors"]
    assert (refused["name"], refused["reason"]) == ("made.bin", "store_unavailable")
    assert "return a smaller file, or set store to memory:" in json.dumps(refused)
    assert value["results"] == 700_000
    assert "artifacts" not in value
    assert "artifact://" not in json.dumps([value, [block.model_dump_json() for block in content]])


def test_oversized_file_is_refused_on_a_server_without_store(tools: Path, tmp_path: Path) -> None:
    size = 3 * 1024 * 1024
    with somebody() as user:
        words = ("call", "kept.py", "make", f"size:={size}", "--json")
        result = runner(tmp_path, "memory:", user, *words, RUNNER_BASE64_SIZE_LIMIT_MB="1")
        lost = runner(tmp_path, "none:", user, *words, RUNNER_BASE64_SIZE_LIMIT_MB="1")

    assert result.returncode == 0, result.stderr
    assert "s3_ref" in json.loads(result.stdout)["artifacts"][0]
    (refused,) = json.loads(lost.stdout)["meta_data"]["artifact_errors"]
    assert (refused["name"], refused["reason"]) == ("made.bin", "store_unavailable")
    assert lost.returncode != 0


def test_put_for_a_call_works_in_memory_and_fails_without_store(tools: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("four")
    with somebody() as user:
        words = ("call", "kept.py", "read", "filename=@in.txt")
        read = runner(tmp_path, "memory:", user, *words)
        refused = runner(tmp_path, "none:", user, *words)

    assert (read.returncode, read.stdout) == (0, "4\n"), read.stderr
    assert refused.returncode == 1
    assert "'in.txt' was not kept: this server keeps no files (store = none:)" in refused.stderr


@pytest.mark.parametrize("store", ["memory:", "none:"])
def test_commands_that_would_find_nothing_say_why(tmp_path: Path, store: str) -> None:
    listed = runner(tmp_path, store, "ana", "files", "ls")
    config = runner(tmp_path, store, "ana", "config")
    doctor = runner(tmp_path, store, "ana", "doctor")

    assert listed.returncode == 2
    assert f"store = {store} keeps no file beyond its process" in listed.stderr
    assert store in config.stdout
    assert f"{store} keeps them" in doctor.stdout


@pytest.mark.parametrize("store", ["memory", "none", "memory:x", "none://", "memory://host/x"])
def test_what_only_looks_like_such_a_store_is_refused(tmp_path: Path, store: str) -> None:
    config = runner(tmp_path, store, "ana", "config")

    assert config.returncode == 2
    assert "memory: keeps files as long as the process" in config.stderr
