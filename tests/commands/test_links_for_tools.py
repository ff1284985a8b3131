"""Links for tools: a tool of version 2 fetches its file, and reaches nothing else."""

import json
import os
import socket
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from support import ROOT, TOOLS, call, error_code, open_toolset, serving_over_http

from runner.store.protocol import Origin
from runner.toolset.toolset import Toolset

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

LINKS = TOOLS / "links.py"
FETCHING = ["fetch", "fetch_async", "fetch_in_a_program"]


ANN = f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
async def toolset(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Toolset]:
    async with open_toolset(LINKS, tmp_path_factory.mktemp("links")) as opened:
        await opened.library.of(ANN).put(b"the text", name="a.txt", origin=Origin.UPLOADED)
        yield opened


@contextmanager
def listening(host: str = "127.0.0.1") -> Iterator[tuple[str, int]]:
    with socket.create_server((host, 0)) as server:
        yield server.getsockname()[:2]


def results(completed: Any) -> Any:
    return completed.processed.value["results"]


@pytest.mark.parametrize("tool", FETCHING)
async def test_tool_fetches_files_given_as_links(toolset: Toolset, tool: str) -> None:
    """Source: S0-58."""
    completed = await call(toolset, ANN, tool, file_names=["a.txt"])

    assert results(completed)["texts"] == ["the text"], results(completed)


async def test_guard_tier_tool_fetches_links(folder: Path, user: str) -> None:
    async with open_toolset(LINKS, folder, isolation="guard") as opened:
        await opened.library.of(user).put(b"the text", name="a.txt", origin=Origin.UPLOADED)

        completed = await call(opened, user, "fetch", file_names=["a.txt"])

    assert results(completed)["texts"] == ["the text"]


async def test_single_file_comes_as_link_by_setting(folder: Path, user: str) -> None:
    async with open_toolset(LINKS, folder, file_delivery="url") as opened:
        await opened.library.of(user).put(b"the text", name="a.txt", origin=Origin.UPLOADED)

        completed = await call(opened, user, "fetch_one", filename="a.txt")

    assert results(completed)["texts"] == ["the text"]


async def test_no_other_address_answers(toolset: Toolset) -> None:
    with listening() as other, listening("127.0.0.2") as elsewhere:
        refused = await call(toolset, ANN, "reach", file_names=["a.txt"], host=other[0], port=other[1])
        beside = await call(toolset, ANN, "reach", file_names=["a.txt"], host=elsewhere[0], port=elsewhere[1])
        outside = await call(toolset, ANN, "reach", file_names=["a.txt"], host="192.0.2.1", port=80)
        control = socket.create_connection(other)

    control.close()
    for completed in (refused, beside, outside):
        assert results(completed) == {"error": "PermissionError", "errno": 13}
    (denial,) = refused.processed.value["meta_data"]["denials"]
    assert denial["path"] == f"{other[0]}:{other[1]}"


async def test_tool_without_links_cannot_reach_link_address(toolset: Toolset) -> None:
    (link,) = results(await call(toolset, ANN, "links", file_names=["a.txt"]))["links"]
    address = urlsplit(link)
    host, port = address.hostname, address.port

    with_links = await call(toolset, ANN, "reach", file_names=["a.txt"], host=host, port=port)
    without = await call(toolset, ANN, "reach_without_links", host=host, port=port)

    assert results(with_links) == {"reached": [host, port]}
    assert results(without)["error"] == "PermissionError"


@pytest.mark.parametrize(
    ("path", "status"),
    [("/mcp", 404), ("/", 404), ("/healthz", 404), ("/api/files/download/art_000000000000?token=a.b", 403)],
)
async def test_link_address_serves_downloads_only(toolset: Toolset, path: str, status: int) -> None:
    completed = await call(toolset, ANN, "status", file_names=["a.txt"], path=path)

    assert results(completed) == {"status": status}


async def test_tool_failing_at_closed_address_gets_reason(toolset: Toolset) -> None:
    with listening() as (host, port):
        completed = await call(toolset, ANN, "reach_or_fail", file_names=["a.txt"], host=host, port=port)

    assert error_code(completed) == "E_NETWORK_DENIED"
    details = completed.processed.value["meta_data"]["details"]
    assert (details["host"], details["port"]) == (host, port)


async def test_error_text_about_link_has_no_token(toolset: Toolset) -> None:
    completed = await call(toolset, ANN, "open_link", file_names=["a.txt"])

    text = json.dumps(completed.processed.value)
    assert error_code(completed) == "E_TOOL"
    assert "/api/files/download/" in text
    assert "token=" not in text


async def test_name_of_no_file_stays_unchanged(toolset: Toolset) -> None:
    completed = await call(toolset, ANN, "fetch", file_names=["no-such-file.txt"])

    assert error_code(completed) in ("E_TOOL", "E_FILE_NOT_FOUND")


def test_stdio_tool_fetches_its_file(run: Any, folder: Path) -> None:
    (folder / "a.txt").write_text("from the shell")

    ended = run("call", LINKS, "fetch", "--json", "--file", folder / "a.txt", 'file_names:=["a.txt"]')

    assert ended.status == 0, ended.err
    assert ended.json["results"] == {"texts": ["from the shell"]}


async def test_serve_tool_fetches_file_over_both_transports(
    run: Any, folder: Path, user: str, environment: dict[str, str]
) -> None:
    (folder / "a.txt").write_text("served")
    assert run("files", "put", folder / "a.txt").status == 0
    command = [sys.executable, "-m", "runner.cli.app", "serve", str(LINKS)]

    stdio = StdioTransport(command[0], [*command[1:], "--transport", "stdio"], env=environment, cwd=str(ROOT))
    async with Client(stdio) as client:
        by_stdio = await client.call_tool("fetch", {"file_names": ["a.txt"]})
    with serving_over_http(LINKS, environment) as url:
        async with Client(url) as client:
            by_http = await client.call_tool("fetch", {"file_names": ["a.txt"]})

    for answered in (by_stdio, by_http):
        assert answered.structured_content["results"] == {"texts": ["served"]}
        assert "token" not in json.dumps(answered.structured_content)


@pytest.mark.parametrize("tool", ["put", "put_by_context"])
async def test_file_put_by_running_tool_in_my_files_with_reference(toolset: Toolset, tool: str) -> None:
    """Source: S4-3, S4-4, S4-63, S4-85 and S4-86."""
    completed = await call(toolset, ANN, tool, text="kept")

    ref = results(completed)["ref"]
    stored = await toolset.library.of(ANN).by_id(ref["id"])
    assert stored is not None
    async with toolset.library.of(ANN).open(stored) as content:
        assert b"".join([chunk async for chunk in content]) == b"kept"
    assert (ref["filename"], ref["mime_type"], ref["size_bytes"]) == ("note.txt", "text/plain", 4)
    assert ref["source"] == {"why": "test"}
    assert not os.listdir(f"/tmp/{ANN}/.artifacts")


async def test_bytes_above_frame_size_go_by_file(toolset: Toolset) -> None:
    completed = await call(toolset, ANN, "put_many_bytes", size=70 * 1024 * 1024)

    assert results(completed)["ref"]["size_bytes"] == 70 * 1024 * 1024


async def test_same_file_put_twice_stored_once(toolset: Toolset) -> None:
    completed = await call(toolset, ANN, "put_own")

    first, second = results(completed)["refs"]
    assert first == second
    assert first["filename"] == "own.txt"


@pytest.mark.parametrize(
    ("mime", "expected"),
    [
        ("text/markdown", "text/markdown"),
        ("\\ud800", "text/plain"),
        ("text/html\\r\\nX: y", "text/plain"),
        (f"text/{'a' * 10_000}", "text/plain"),
    ],
)
async def test_invalid_mime_type_not_stored(toolset: Toolset, mime: str, expected: str) -> None:
    completed = await call(toolset, ANN, "put_as", mime=mime)

    assert results(completed) == {"mime": expected}


@pytest.mark.parametrize("path", ["/etc/passwd", "/tmp/someone-else/file", "../../etc/passwd", ""])
async def test_file_outside_home_not_put(toolset: Toolset, path: str) -> None:
    completed = await call(toolset, ANN, "put_path", path=path)

    assert "allowed directory" in results(completed)["refused"], results(completed)


async def test_tool_without_home_cannot_put(toolset: Toolset) -> None:
    completed = await call(toolset, ANN, "put_without_home", text="kept")

    assert results(completed) == "refused"


async def test_put_above_file_limit_stores_nothing(folder: Path, user: str) -> None:
    async with open_toolset(LINKS, folder, max_artifact_bytes=1000) as opened:
        completed = await call(opened, user, "put_many_bytes", size=1001)

    assert error_code(completed) == "E_TOOL"
    assert "File too large" in results(completed)["error"]
