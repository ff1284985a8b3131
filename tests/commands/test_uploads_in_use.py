"""Files that came over HTTP, in the hands of tools and clients of one running server."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from mcp.client.subscriptions import ResourceUpdated, listen
from support import TOOLS, server_url, stop

pytestmark = [
    pytest.mark.release,
    pytest.mark.anyio,
    pytest.mark.kernel,
    # The SDK's client says so of the earlier era, which is served all the same.
    pytest.mark.filterwarnings("ignore:resources/(un)?subscribe is removed"),
]

LARGE_BYTES = 256 * 1024 * 1024
FILES = "runner://files"


@dataclass
class Host:
    """A server in a process of its own, and where what it says is written."""

    url: str
    process: "subprocess.Popen[str]"

    @property
    def base(self) -> str:
        return self.url.removesuffix("/mcp")

    def peak_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        peak = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert peak is not None
        return int(peak[1]) * 1024


@pytest.fixture
def start(environment: dict[str, str], folder: Path) -> Iterator[Callable[..., Host]]:
    """Start a server with `files.py`."""
    started: list[subprocess.Popen[str]] = []

    def run(**more: str) -> Host:
        command = [sys.executable, "-m", "runner.cli.app", "serve", str(TOOLS / "files.py")]
        process = subprocess.Popen(
            [*command, "--transport", "http", "--port", "0"],
            env={**environment, **more},
            cwd=folder,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return Host(server_url(process), process)

    yield run
    for process in started:
        if process.poll() is None:
            stop(process)
        else:
            process.communicate()


@asynccontextmanager
async def browser(host: Host) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=host.base, timeout=180) as http:
        yield http


async def frames(lines: AsyncIterator[str], last: str) -> list[dict[str, Any]]:
    """Return the events up to the first one of that type."""
    events: list[dict[str, Any]] = []
    async for line in lines:
        if line.startswith("data: "):
            events.append(json.loads(line.removeprefix("data: ")))
            if events[-1]["type"] == last:
                return events
    raise AssertionError(f"the stream ended without {last}: {events}")


async def test_uploaded_file_read_by_tool_and_output_downloaded(
    start: Callable[..., Host],
) -> None:
    host = start()

    async with browser(host) as http, Client(host.url) as mcp:
        up = await http.put("/api/files?filename=in.txt", content=b"from a browser")
        read = await mcp.call_tool("read", {"filename": "in.txt"})
        await mcp.call_tool("make", {"name": "out.txt", "size": 1000})
        made = {file["filename"]: file for file in (await http.get("/api/files")).json()["files"]}
        link = await http.post(f"/api/files/{made['out.txt']['key']}/link", json={"single_use": True})
        down = [await http.get(link.json()["url"]) for _ in range(2)]

    assert up.status_code == 201
    assert read.structured_content["text"] == "from a browser"
    assert [(name, file["origin"]) for name, file in made.items()] == [
        ("in.txt", "uploaded"),
        ("out.txt", "generated"),
    ]
    assert [answer.status_code for answer in down] == [200, 403]
    assert down[0].content == b"x" * 1000


async def test_event_stream_reports_call_and_files_once_stored(
    start: Callable[..., Host],
) -> None:
    host = start()

    async with browser(host) as http, Client(host.url) as mcp, http.stream("GET", "/events") as stream:
        lines = stream.aiter_lines()
        async for line in lines:
            if "listening" in line:
                break
        await mcp.call_tool("make", {"name": "table.csv", "size": 30})
        events = await frames(lines, "files_update")
        (file,) = events[-1]["files"]
        key = file["uri"].removeprefix("artifact://")
        there = await http.get(f"/artifacts/{key}", headers={"mcp-session-id": "any"})

    types = [event["type"] for event in events]
    assert types.index("tool_start") < types.index("artifact_stored") < types.index("files_update")
    assert (file["name"], file["category"], file["showable"]) == ("table.csv", "dataset", True)
    assert events[-1]["display"]["primary_file"] == "table.csv"
    assert there.content == b"x" * 30
    assert "xxx" not in json.dumps(events)


@pytest.mark.parametrize("era", ["legacy", "auto"])
async def test_clients_of_both_eras_notified_over_http_of_file_changes(
    start: Callable[..., Host], era: Any
) -> None:
    host = start()
    received: asyncio.Queue[str] = asyncio.Queue()

    async def hear(message: Any) -> None:
        uri = getattr(getattr(message, "params", None), "uri", None)
        if uri is not None:
            received.put_nowait(str(uri))

    async with browser(host) as http, Client(host.url, mode=era, message_handler=hear) as mcp:
        if era == "legacy":
            await mcp.session.subscribe_resource(FILES)
            await http.put("/api/files?filename=a.txt", content=b"x")
            notice = await received.get()
        else:
            async with listen(mcp.session, resource_subscriptions=[FILES]) as stream:
                await http.put("/api/files?filename=a.txt", content=b"x")
                event = await anext(aiter(stream))
            assert isinstance(event, ResourceUpdated)
            notice = event.uri
        block = await mcp.read_resource(FILES)

    assert notice == FILES
    assert "a.txt" in block[0].text


async def test_page_and_its_tools_share_session_files(start: Callable[..., Host]) -> None:
    host = start(RUNNER_PERSIST_FILES_ACROSS_SESSIONS="false")

    async with browser(host) as http:
        opening = await http.post("/api/session")
        await http.put("/api/files?filename=mine.txt", content=b"of this page")
        cookie = {"cookie": f"toolcell_session={opening.cookies['toolcell_session']}"}
        async with Client(StreamableHttpTransport(host.url, headers=cookie)) as page:
            own = await page.call_tool("read", {"filename": "mine.txt"})
        async with Client(host.url) as other:
            foreign = await other.call_tool("read", {"filename": "mine.txt"}, raise_on_error=False)

    assert own.structured_content["text"] == "of this page"
    assert '"E_FILE_NOT_FOUND"' in foreign.content[0].text


async def test_memory_does_not_grow_with_upload(start: Callable[..., Host]) -> None:
    host = start()

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(LARGE_BYTES // (1024 * 1024)):
            yield number.to_bytes(4, "big") * (256 * 1024)

    async with browser(host) as http:
        await http.put("/api/files?filename=small.bin", content=b"x")
        before = host.peak_bytes()
        answer = await http.put("/api/files?filename=large.bin", content=pieces())
        async with http.stream("GET", f"/api/files/{answer.json()['key']}") as download:
            size = 0
            async for piece in download.aiter_bytes():
                size += len(piece)
        after = host.peak_bytes()

    assert answer.json()["size"] == LARGE_BYTES
    assert size > LARGE_BYTES * 4 // 3
    assert after - before < LARGE_BYTES // 4


async def test_oversized_upload_client_can_read_reason(start: Callable[..., Host]) -> None:
    host = start(RUNNER_MAX_ARTIFACT_BYTES="1000000")
    content = b"x" * 40_000_000

    async def pieces() -> AsyncIterator[bytes]:
        for first in range(0, len(content), 65536):
            yield content[first : first + 65536]

    async with browser(host) as http:
        answers = [
            await http.put("/api/files?filename=a", content=content),
            await http.put("/api/files?filename=a", content=pieces()),
            await http.post("/api/files", files={"file": ("a", content)}),
        ]
        after = await http.put("/api/files?filename=b", content=content[:1_000_000])
        files = (await http.get("/api/files")).json()["files"]

    assert [answer.status_code for answer in answers] == [413, 413, 413]
    assert all("max_artifact_bytes" in answer.json()["error"] for answer in answers)
    assert after.status_code == 201
    assert [file["filename"] for file in files] == ["b"]


async def test_open_streams_do_not_delay_stop_and_log_has_no_tokens(
    start: Callable[..., Host],
) -> None:
    host = start(RUNNER_LOG_LEVEL="debug")

    async with browser(host) as http:
        cookie = (await http.post("/api/session")).cookies["toolcell_session"]
        key = (await http.put("/api/files?filename=a.txt", content=b"x")).json()["key"]
        url = (await http.post(f"/api/files/{key}/link", json={})).json()["url"]
        statuses = [
            (await http.get(address)).status_code for address in (url, f"{url}AAAA", f"{url[:-4]}AAAA")
        ]
        async with http.stream("GET", "/events") as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            host.process.terminate()
            # Cut off at the end of the server's grace, it would raise: it ends as a stream should.
            rest = [line async for line in lines]
    _, errors = await asyncio.to_thread(host.process.communicate, timeout=120)

    assert statuses == [200, 403, 403]
    assert [line for line in rest if line.startswith("data")] == []
    assert "file uploaded" in errors
    assert "download refused" in errors
    assert url.partition("token=")[2] not in errors
    assert cookie.partition(".")[2] not in errors
    assert "Traceback" not in errors
