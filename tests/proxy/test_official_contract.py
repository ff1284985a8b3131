"""Official servers behind `runner proxy --contract full`: small results are theirs, others references."""

import contextlib
import json
import re
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from contracting import Front, client_of, front_of, read_by_model
from eras import NEWEST, SESSION
from everything import SERVER, Person, node, words
from fastmcp import Client
from fastmcp.client.transports import StdioTransport

pytestmark = [
    pytest.mark.needs_browser,
    pytest.mark.needs_npm,
    pytest.mark.release,
    pytest.mark.anyio,
    pytest.mark.kernel,
    # Each front is a process with a server of its own, and a busy machine takes minutes to start one.
    pytest.mark.timeout(900),
    # The Playwright server drives the browser, this module does not import it.
    pytest.mark.needs_browser,
    pytest.mark.needs_npm,
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

VERSIONS = pytest.mark.parametrize("version", [SESSION, NEWEST])
OFFICIAL = SERVER.parents[2]
PLAIN = "data:text/plain;base64,aGVsbG8gd29ybGQ="
LONG = "".join(f"row {n} of many\n" for n in range(20_000))


def script(name: str) -> str:
    found = OFFICIAL / name / "dist" / "index.js"
    assert found.is_file(), f"{name} is not installed; scripts/test runs npm ci in tests/npm"
    return str(found)


def alike(called: Any) -> Any:
    """Return the answer of a client without the parts that differ between calls and eras."""
    dumped = called.model_dump(mode="json", by_alias=True, exclude={"meta", "result_type"}, exclude_none=True)
    timeless = re.sub(r"\d+:\d\d:\d\d( [AP]M)?", "TIME", json.dumps(dumped))
    return json.loads(re.sub(r"[\w./-]*/page-[0-9TZ-]+", "FOLDER/page-TIME", timeless))


@asynccontextmanager
async def directly(*arguments: str, folder: Path | None = None, **environment: str) -> AsyncIterator[Any]:
    """A client of a server itself, with nothing between them."""
    where = None if folder is None else str(folder)
    transport = StdioTransport(node(), list(arguments), env=environment, cwd=where, keep_alive=False)
    async with Client(transport, mode="legacy", **Person().options()) as client:
        yield client


@pytest.fixture(scope="module")
def everything() -> Iterator[Front]:
    with front_of("--contract", "full", "--", node(), str(SERVER), "stdio") as front:
        yield front


@pytest.fixture(scope="module")
def lent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lent")
    (folder / "short.txt").write_text("a short text")
    (folder / "long.txt").write_text(LONG)
    (folder / "picture.png").write_bytes(bytes.fromhex("89504e470d0a1a0a") + bytes(range(256)) * 20)
    return folder


@pytest.fixture(scope="module")
def filesystem(lent: Path) -> Iterator[Front]:
    words = ["--contract", "full", "--allow-write", str(lent), "--"]
    with front_of(*words, node(), script("server-filesystem"), str(lent)) as front:
        yield front


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    entry = _memory_entry(tmp_path_factory.mktemp("memory"))
    lent = f"--allow-write={entry.parent / 'data'}"
    with front_of("--contract", "full", lent, str(entry)) as front:
        yield front


def _memory_entry(folder: Path) -> Path:
    data = folder / "data"
    data.mkdir(mode=0o700)
    entry = {
        "command": node(),
        "args": [script("server-memory")],
        "env": {"MEMORY_FILE_PATH": str(data / "memory.json")},
    }
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"memory": entry}}))
    return file


class _Garden(BaseHTTPRequestHandler):
    """One small page."""

    def do_GET(self) -> None:
        page = b"<title>Garden</title><h1>Bees</h1><button>Fly</button>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_words: object) -> None:
        """Log no requests."""


@pytest.fixture(scope="module")
def garden() -> Iterator[str]:
    """The address of a page on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Garden) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield "http://{}:{}/".format(*server.server_address)
        finally:
            server.shutdown()
            thread.join()


def playwright_with(browser: str) -> list[str]:
    program = shutil.which(browser)
    cli = OFFICIAL.parent / "@playwright" / "mcp" / "cli.js"
    assert program, f"the Playwright server drives a real browser: install the package {browser}"
    assert cli.is_file(), "@playwright/mcp is not installed; scripts/test runs npm ci in tests/npm"
    return [str(cli), "--headless", "--isolated", "--no-sandbox", "--executable-path", program]


@contextlib.contextmanager
def playwright_behind(garden: str, browser: str, *options: str) -> Iterator[Front]:
    """The official Playwright server behind the proxy; its browser may reach the one page."""
    reach = "--allow-net=" + garden.removeprefix("http://").rstrip("/")
    with front_of("--contract", "full", *options, reach, "--", node(), *playwright_with(browser)) as front:
        yield front


@pytest.fixture(scope="module")
def playwright(garden: str) -> Iterator[Front]:
    with playwright_behind(garden, "chromium", "--allow-sockets") as front:
        yield front


HARMLESS: list[tuple[str, dict[str, Any]]] = [
    ("echo", {"message": "hello"}),
    ("get-annotated-message", {"messageType": "error"}),
    ("get-resource-links", {"count": 2}),
    ("get-resource-reference", {"resourceType": "Text", "resourceId": 1}),
    ("get-structured-content", {"location": "Chicago"}),
    ("get-sum", {"a": 1.5, "b": 2}),
    # Images stay in the message, as those of our own tools do.
    ("get-tiny-image", {}),
    ("gzip-file-as-resource", {"name": "b.gz", "data": PLAIN, "outputType": "resourceLink"}),
]


@VERSIONS
async def test_everything_small_results_pass_unchanged(everything: Front, version: str) -> None:
    async with client_of(everything, version, **Person().options()) as behind:
        through = [await behind.call_tool_mcp(tool, arguments) for tool, arguments in HARMLESS]
    async with directly(str(SERVER), "stdio") as direct:
        sent = [await direct.call_tool_mcp(tool, arguments) for tool, arguments in HARMLESS]

    for (tool, _), ours, theirs in zip(HARMLESS, through, sent, strict=True):
        assert alike(ours) == alike(theirs), tool


@VERSIONS
async def test_everything_files_and_long_texts_are_references(everything: Front, version: str) -> None:
    async with client_of(everything, version, **Person().options()) as behind:
        embedded = {"name": "a.gz", "data": PLAIN, "outputType": "resource"}
        zipped = await behind.call_tool_mcp("gzip-file-as-resource", embedded)
        long = await behind.call_tool_mcp("echo", {"message": LONG})
        elicited = await behind.call_tool("trigger-elicitation-request", {})
        link = next(block for block in zipped.content if block.type == "resource_link")
        fetched = await behind.read_resource(str(link.uri))

    assert fetched[0].blob.startswith("H4sI")
    assert "H4sI" not in zipped.model_dump_json()
    assert "a.gz" in await everything.files()
    assert "artifact://" in words(long)
    assert len(long.model_dump_json()) < 20_000
    assert "Ann" in words(elicited)


async def test_everything_results_each_have_contract_value(everything: Front) -> None:
    async with client_of(everything, NEWEST, **Person().options()) as behind:
        called = await behind.call_tool_mcp("get-structured-content", {"location": "Chicago"})

    assert called.meta["toolcell/result"]["results"] == called.structured_content


@VERSIONS
async def test_filesystem_server_behaves_as_without_proxy(
    filesystem: Front, lent: Path, version: str
) -> None:
    def acts(name: str) -> list[tuple[str, dict[str, Any]]]:
        return [
            ("read_text_file", {"path": str(lent / "short.txt")}),
            ("list_allowed_directories", {}),
            ("write_file", {"path": str(lent / name), "content": "written"}),
            ("get_file_info", {"path": "/etc/passwd"}),
        ]

    async with client_of(filesystem, version) as behind:
        through = [await behind.call_tool_mcp(*act) for act in acts("same.txt")]
        long = await behind.call_tool_mcp("read_text_file", {"path": str(lent / "long.txt")})
        picture = await behind.call_tool_mcp("read_media_file", {"path": str(lent / "picture.png")})
    async with directly(script("server-filesystem"), str(lent)) as direct:
        sent = [await direct.call_tool_mcp(*act) for act in acts("same.txt")]

    assert [alike(called) for called in through] == [alike(called) for called in sent]
    assert (lent / "same.txt").read_text() == "written"
    assert "artifact://" in read_by_model(long)
    assert len(long.model_dump_json()) < 30_000
    assert picture.meta["toolcell/display"]["order"] == ["image_1.png"]
    assert "iVBORw0KGgo" not in read_by_model(picture)


@VERSIONS
async def test_memory_server_behaves_as_without_proxy(memory: Front, version: str, tmp_path: Path) -> None:
    entity = {"name": f"bees {version}", "entityType": "insect", "observations": ["they fly"]}
    acts: list[tuple[str, dict[str, Any]]] = [
        ("create_entities", {"entities": [entity]}),
        ("open_nodes", {"names": [entity["name"]]}),
        ("search_nodes", {"query": "nothing of that name"}),
    ]
    async with client_of(memory, version) as behind:
        through = [await behind.call_tool_mcp(*act) for act in acts]
    own = str(tmp_path / "memory.json")
    async with directly(script("server-memory"), MEMORY_FILE_PATH=own) as direct:
        sent = [await direct.call_tool_mcp(*act) for act in acts]

    assert [alike(called) for called in through] == [alike(called) for called in sent]


@VERSIONS
async def test_playwright_full_chromium_reads_page_as_without_proxy(
    playwright: Front, garden: str, version: str
) -> None:
    acts: list[tuple[str, dict[str, Any]]] = [
        ("browser_navigate", {"url": garden}),
        ("browser_snapshot", {}),
        ("browser_evaluate", {"function": "() => document.title"}),
        ("browser_close", {}),
    ]
    async with client_of(playwright, version) as behind:
        through = [await behind.call_tool_mcp(*act) for act in acts]
    # Chromium makes a Unix socket there, whose path has 107 bytes at most: pytest's folders are too deep.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as short:
        async with directly(*playwright_with("chromium"), folder=Path(short), TMPDIR=short) as direct:
            sent = [await direct.call_tool_mcp(*act) for act in acts]

    assert 'heading "Bees"' in read_by_model(through[1])
    for (tool, _), ours, theirs in zip(acts, through, sent, strict=True):
        assert alike(ours) == alike(theirs), tool


@VERSIONS
async def test_playwright_screenshot_becomes_user_file(playwright: Front, garden: str, version: str) -> None:
    async with client_of(playwright, version) as behind:
        await behind.call_tool_mcp("browser_navigate", {"url": garden})
        taken = await behind.call_tool_mcp("browser_take_screenshot", {"fullPage": True})
        (file,) = taken.meta["toolcell/result"]["artifacts"]
        fetched = await behind.read_resource(file["uri"])
        await behind.call_tool_mcp("browser_close", {})

    assert (file["mime"], file["name"]) == ("image/png", "image_1.png")
    assert fetched[0].blob.startswith("iVBORw0KGgo")
    assert "iVBORw0KGgo" not in read_by_model(taken)
    assert "Screenshot" in read_by_model(taken)
    assert file["name"] in await playwright.files()


@pytest.mark.parametrize("browser", ["chromium", "chromium-headless-shell"])
async def test_playwright_without_sockets_names_option(garden: str, browser: str) -> None:
    with playwright_behind(garden, browser) as front:
        async with client_of(front, NEWEST) as behind:
            called = await behind.call_tool_mcp("browser_navigate", {"url": garden})

    assert called.is_error
    assert "--allow-sockets would allow those in its home" in called.content[-1].text
