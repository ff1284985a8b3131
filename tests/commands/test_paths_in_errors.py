"""Errors of every kind, as clients get them: none names a path of the host's own, and the log has them."""

import contextlib
import json
import subprocess
import sys
import sysconfig
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from mcp_requests import META, VERSION
from support import ROOT, environment_in, server_url, settings_in, until

from runner.contract.own_paths import OwnPaths
from runner.errors import CallError
from runner.system.uids import Uids

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

SITE = sysconfig.get_paths()["purelib"]
TOOLS = """
import os, threading, time
from pathlib import Path

import pydantic
from fastmcp import FastMCP

mcp = FastMCP("paths")
HERE = Path(__file__).parent


@mcp.tool
def fine() -> str:
    return "fine"


@mcp.tool
def names_its_file() -> str:
    raise RuntimeError(f"something is wrong in {__file__}")


@mcp.tool
def names_a_library() -> str:
    raise RuntimeError(f"something is wrong in {pydantic.__file__}")


@mcp.tool
def dies_in_a_thread() -> str:
    def fails() -> None:
        try:
            raise RuntimeError("of the author")
        finally:
            threading.Timer(0.2, os._exit, [3]).start()
    threading.Thread(target=fails).start()
    time.sleep(60)


@mcp.tool
def breaks_the_runner() -> str:
    import runner.worker.program
    del runner.worker.program.FOLDED
    return "nobody hears this"


@mcp.tool
def writes_beside() -> str:
    (HERE / "mine.txt").write_text("x")


@mcp.tool
def tries_and_goes_on() -> dict:
    try:
        (HERE / "mine.txt").write_text("x")
    except OSError:
        pass
    return {"results": "went on"}


@mcp.tool
def names_the_state() -> str:
    raise RuntimeError("nothing can be read from STATE/tokens.json")


@mcp.tool
def reads(filename: str) -> str:
    return Path(filename).read_text()


@mcp.tool
def sleeps() -> str:
    time.sleep(60)


@mcp.tool
def seldom() -> str:
    return "now"


@mcp.tool
def at_home(username: str) -> str:
    return os.listdir(f"HOMES/{username}")[0]
"""
BROKEN = """
raise RuntimeError(f"something is wrong in {__file__}")
"""
USERS = {f"token-of-{name}-token-of-{name}": name for name in ("ann", "bob", "carl", "dora")}
CALLS = [
    # tool, its code, which of our paths the log must have because the client must not
    ("no_such_tool", "E_TOOL_NOT_FOUND", None),
    ("names_its_file", "E_TOOL", "tools"),
    ("names_a_library", "E_TOOL", "site"),
    ("dies_in_a_thread", "E_CRASHED", "tools"),
    ("breaks_the_runner", "E_CRASHED", "ours"),
    ("writes_beside", "E_INVALID_PATH", "tools"),
    ("tries_and_goes_on", None, "tools"),
    ("names_the_state", "E_TOOL", "state"),
    ("reads", "E_FILE_NOT_FOUND", None),
    ("sleeps", "E_TIMEOUT", None),
    ("seldom", "E_BUSY", None),
]
ARGUMENTS = {"reads": {"filename": "nowhere.csv"}}


@dataclass
class Place:
    """Paths of a server and of its files, and its log."""

    folder: Path
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("tools", "state", "homes"):
            (self.folder / name).mkdir(mode=0o700)
        self.tool_file.write_text(
            TOOLS.replace("STATE", str(self.folder / "state")).replace("HOMES", str(self.folder / "homes"))
        )
        (self.folder / "runner.toml").write_text(
            "[tools.sleeps]\nidle_timeout_s = 1\n"
            '[call_limits.seldom]\ntools = ["seldom"]\nper = "user"\ncalls_per_minute = 1\n'
        )
        tokens = self.folder / "tokens.json"
        tokens.write_text(json.dumps(USERS))
        tokens.chmod(0o600)

    @property
    def tool_file(self) -> Path:
        return self.folder / "tools" / "paths.py"

    @property
    def paths(self) -> dict[str, str]:
        own = {name: str(self.folder / name) for name in ("tools", "state", "store")}
        return {**own, "site": SITE, "ours": str(ROOT / "sandbox"), "homes": str(self.folder / "homes")}

    def leaks(self, text: str) -> list[str]:
        """Return what of ours a message names. A home below the folder of homes is the user's."""
        never = [path for name, path in self.paths.items() if name != "homes"]
        return [path for path in (*never, "uids.json", ".toolcell-") if path in text]

    @property
    def environment(self) -> dict[str, str]:
        return environment_in(self.folder, RUNNER_HOMES=str(self.folder / "homes"))

    def logged(self, since: int, path: str) -> bool:
        return until(lambda: path in "".join(self.log[since:]))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("paths")
    folder.chmod(0o711)
    return Place(folder)


@pytest.fixture(scope="module")
def url(place: Place) -> Iterator[str]:
    auth = {"RUNNER_AUTH__KIND": "static", "RUNNER_AUTH__TOKENS_FILE": str(place.folder / "tokens.json")}
    command = [sys.executable, "-m", "runner.cli.app", "serve", str(place.tool_file), "--transport", "http"]
    process = subprocess.Popen(
        [*command, "--port", "0", "--config", str(place.folder / "runner.toml")],
        env=place.environment | auth,
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    try:
        address = server_url(process)
        reading = threading.Thread(target=lambda: place.log.extend(process.stderr or ()), daemon=True)
        reading.start()
        yield address.removesuffix("/mcp")
    finally:
        process.terminate()
        process.wait(60)
        reading.join()
        assert process.stderr is not None
        process.stderr.close()


def token_of(user: str) -> str:
    return next(token for token, name in USERS.items() if name == user)


async def called(url: str, tool: str, *, user: str = "ann", **arguments: Any) -> tuple[str | None, str]:
    """Call a tool; return the code of its error, and all that was said."""
    params = {"name": tool, "arguments": {**ARGUMENTS.get(tool, {}), **arguments}, "_meta": META}
    headers = {
        "authorization": f"Bearer {token_of(user)}",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": VERSION,
        "mcp-method": "tools/call",
        "mcp-name": tool,
    }
    async with httpx2.AsyncClient(timeout=120) as http:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        answer = await http.post(f"{url}/mcp", json=body, headers=headers)
    text = answer.text
    fields = json.loads(
        next(line[6:] for line in text.splitlines() if line.startswith("data: {"))
        if text.startswith(("event", "data", ":"))
        else text
    )
    return code_of(fields["result"]), text


def code_of(result: Any) -> str | None:
    value = result["_meta"].get("toolcell/result") or result["structuredContent"]
    code = value.get("meta_data", {}).get("error_code") if isinstance(value, dict) else None
    return None if code is None else str(code)


@pytest.mark.parametrize(("tool", "code", "named"), CALLS, ids=[call[0] for call in CALLS])
async def test_http_call_names_no_host_path_and_log_does(
    place: Place, url: str, tool: str, code: str | None, named: str | None
) -> None:
    if tool == "seldom":
        await called(url, tool)
    since = len(place.log)

    found, text = await called(url, tool)

    assert found == code
    assert place.leaks(text) == []
    assert named is None or place.logged(since, place.paths[named])


@pytest.fixture
async def over_stdio(tmp_path: Path) -> AsyncIterator[tuple[Place, "Client[Any]"]]:
    tmp_path.chmod(0o711)
    place, logged = Place(tmp_path), tmp_path / "log"
    arguments = ["-m", "runner.cli.app", "serve", str(place.tool_file), "--user", "ann"]
    arguments += ["--config", str(place.folder / "runner.toml")]
    environment = {**place.environment, "PYTHONPATH": str(ROOT)}
    way = StdioTransport(sys.executable, arguments, env=environment, keep_alive=False, log_file=logged)
    async with Client(way) as client:
        yield place, client


def holds(file: Path, text: str) -> bool:
    return text in file.read_text()


async def test_stdio_calls_name_no_host_path_and_log_does(
    over_stdio: tuple[Place, "Client[Any]"],
) -> None:
    place, client = over_stdio
    codes, text = {}, ""
    await client.call_tool_mcp("seldom", {})
    for tool, _code, _named in CALLS:
        result = await client.call_tool_mcp(tool, ARGUMENTS.get(tool, {}))
        dumped = result.model_dump(mode="json", by_alias=True)
        codes[tool], text = code_of(dumped), text + json.dumps(dumped)

    logged = place.folder / "log"
    assert codes == {tool: code for tool, code, _named in CALLS}
    assert place.leaks(text) == []
    for name in {named for _tool, _code, named in CALLS if named is not None}:
        assert until(partial(holds, logged, place.paths[name])), name


async def test_crash_frames_show_author_code_and_none_of_ours(place: Place, url: str) -> None:
    _code, theirs = await called(url, "dies_in_a_thread")
    _code, ours = await called(url, "breaks_the_runner")

    assert "{tool_folder}/paths.py" in theirs
    assert "of the author" in theirs
    assert "worker_main.py" not in ours
    assert "NameError" in ours


async def test_unloadable_tool_file_named_without_folder(place: Place, url: str) -> None:
    since, before = len(place.log), place.tool_file.read_text()
    place.tool_file.write_text(BROKEN)
    try:
        # The first pool was ann's, or is this user's: then the next has none yet.
        answers = [await called(url, "at_home", user=user) for user in ("bob",)]
    finally:
        place.tool_file.write_text(before)

    assert [code for code, _text in answers] == ["E_TOOL"]
    assert "cannot be loaded any more" in answers[0][1]
    assert place.leaks(answers[0][1]) == []
    assert place.logged(since, place.paths["tools"])


async def test_missing_homes_folder_named_by_setting(place: Place, url: str) -> None:
    since, homes = len(place.log), place.folder / "homes"
    homes.rename(place.folder / "away")
    try:
        code, text = await called(url, "at_home", user="carl")
    finally:
        (place.folder / "away").rename(homes)

    assert code == "E_ISOLATION"
    assert "{homes}" in text
    assert [*place.leaks(text), *([str(homes)] if str(homes) in text else [])] == []
    assert place.logged(since, str(homes))


async def test_unusable_state_folder_named_by_setting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_in(tmp_path, homes=tmp_path / "homes")
    (tmp_path / "state").write_text("no folder")
    with pytest.raises(CallError) as raised:
        Uids(settings.state_dir, settings.uids).of("ann")

    message = OwnPaths.of(settings).redact(raised.value.message)

    assert message == "the state folder {state_dir} (setting `state_dir`) cannot be used: File exists"
    assert str(tmp_path / "state") in caplog.text + str(vars(caplog.records[0]))


async def test_files_api_names_no_host_path(place: Place, url: str) -> None:
    headers = {"authorization": f"Bearer {token_of('ann')}"}
    texts = []
    async with httpx2.AsyncClient(timeout=120, headers=headers, base_url=url) as http:
        texts.append(await http.get("/api/files/nothing"))
        texts.append(await http.post("/api/files", content=b"no form"))
        texts.append(
            await http.post("/api/files", content=b"{", headers={"content-type": "application/json"})
        )
        stored = await http.post("/api/files", files={"file": ("a.txt", b"a")})
        with damaged(place.folder / "store"):
            texts.append(await http.get("/api/files"))
            texts.append(await http.get(f"/api/files/{stored.json()['key']}"))

    assert all(answer.status_code >= 400 for answer in texts[:3]), [answer.text for answer in texts]
    assert place.leaks("".join(answer.text for answer in texts)) == []


@contextlib.contextmanager
def damaged(store: Path) -> Iterator[None]:
    """Overwrite every file of a store for a while."""
    contents = {file: file.read_bytes() for file in store.rglob("*") if file.is_file()}
    assert contents, list(store.rglob("*"))
    try:
        for file in contents:
            file.write_bytes(b"damaged" * 1000)
        yield
    finally:
        for file, content in contents.items():
            file.write_bytes(content)
