"""Every file of the state folder, gone or damaged in every way, under real servers that run or start."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from disks import fill, small_disk
from somebody import somebody
from support import ROOT, outer_environment, playground_address, stop, until

pytestmark = [pytest.mark.needs_root, pytest.mark.release, pytest.mark.kernel]

BEHIND = ROOT / "tests" / "proxy" / "paged.py"
TOOL = """
import os
from pathlib import Path
from fastmcp import FastMCP
mcp = FastMCP("reads")
@mcp.tool
def read(username: str, filename: str) -> str:
    Path(os.environ["HOME"], "note").write_text(username)
    return Path(filename).read_text()
"""

# What servers over HTTP write there, as root and with sessions whose files end with them. What is written
# elsewhere only, has tests of its own: the spool, notes of homes on disks without attributes.
ENTRIES = (
    "tokens.json",
    "tokens-copy.json",
    "uids.json",
    "uids-copy.json",
    "uids.lock",
    "nobody-0.lock",
    "claims",
    "sessions",
    "sessions/*.session",
    "browser-sessions",
    "browser-sessions/*",
    "browser-sessions/*/*",
    "calls",
    "calls/*.lock",
    "servers",
    "servers/*.json",
)


def _removed(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _replaced_by(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        _removed(path)
        make(path)

    return replace


def _cut(path: Path) -> None:
    if path.is_file() and not path.is_symlink():
        os.truncate(path, path.stat().st_size // 2)


def _turned(path: Path) -> None:
    """Put a folder where a file was, and a file where a folder was."""
    make = (
        (lambda it: it.write_bytes(b"{")) if path.is_dir() else (lambda it: (it / "in").mkdir(parents=True))
    )
    _replaced_by(make)(path)


def _linked_to_nowhere(path: Path) -> None:
    # Where a folder leads to no folder, the disk that it should lead to may not be mounted yet.
    if not path.is_dir():
        _replaced_by(lambda it: it.symlink_to(f"/nowhere/{it.name}"))(path)


def _linked_away(path: Path) -> None:
    """Put a link to where it was moved: somebody else's file or folder, for all that can be known."""
    away = path.with_name(f"{path.name}.elsewhere")
    path.rename(away)
    path.symlink_to(away.name)


def _garbage(path: Path) -> None:
    path.touch(0o600)
    path.write_bytes(b"\xff\0[[" * 99)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "gone": _removed,
    "cut": _cut,
    "empty": _replaced_by(lambda path: path.touch(0o600)),
    "garbage": _replaced_by(_garbage),
    "turned": _turned,
    "a pipe": _replaced_by(lambda path: os.mkfifo(path, 0o600)),
    "a link to nowhere": _linked_to_nowhere,
    "a link away": _linked_away,
}

# Each costs a second or so for each file.
WHILE_IT_RUNS = ("gone", "garbage", "turned", "a pipe")


@dataclass
class Server:
    """A server whose state folder can be damaged.

    Attributes:
        folder: Where all of it lies.
        base: Its address, once it runs.
        log: Its output until it served.
    """

    folder: Path
    user: str
    base: str = ""
    log: str = ""

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @contextlib.contextmanager
    def running(self) -> Iterator["Server"]:
        process = self.started()
        try:
            self.base, _, self.log = playground_address(process)
            yield self
        finally:
            stop(process)

    def started(self, *words: str) -> "subprocess.Popen[str]":
        command, *rest = words or ("serve", str(self.folder / "reads.py"))
        return subprocess.Popen(
            [sys.executable, "-m", "runner.cli.app", command, "--transport", "http", "--port", "0", *rest],
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def environment(self) -> dict[str, str]:
        return outer_environment() | {
            "RUNNER_STATE_DIR": str(self.state),
            "RUNNER_STORE": (self.folder / "store").as_uri(),
            "RUNNER_USER": self.user,
            "RUNNER_PERSIST_FILES_ACROSS_SESSIONS": "false",
        }

    def ask(self, path: str, body: bytes = b"", **headers: str) -> tuple[int, str, dict[str, str]]:
        """POST something, or GET where there is nothing to send."""
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        request = urllib.request.Request(self.base + path, data=body or None, headers=named)
        try:
            with urllib.request.urlopen(request, timeout=180) as answer:
                return (
                    answer.status,
                    answer.read().decode(),
                    {name.lower(): value for name, value in answer.headers.items()},
                )
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), {}

    def readiness(self) -> tuple[int, str, dict[str, str]]:
        """Return the answer of `/readyz` once every check has ended, which a busy machine delays."""
        while "takes unusually long" in (answer := self.ask("/readyz"))[1]:
            pass
        return answer

    def mcp(self, method: str, params: dict[str, Any], **headers: str) -> tuple[Any, dict[str, str]]:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        accept = {"content_type": "application/json", "accept": "application/json, text/event-stream"}
        _, text, reply = self.ask("/mcp", json.dumps(message).encode(), **accept, **headers)
        lines = [line.removeprefix("data:") for line in text.splitlines() if '"id":1' in line]
        return json.loads(lines[-1] if lines else text), reply

    def used(self) -> list[str]:
        """Work with it as a client and a browser do; return what did not go well."""
        hello = {"capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        _, reply = self.mcp("initialize", {"protocolVersion": "2025-06-18", **hello})
        session = {"mcp_session_id": reply["mcp-session-id"]}
        form = (
            b'--x\r\nContent-Disposition: form-data; name="file"; filename="in.txt"\r\n\r\nhello\r\n--x--\r\n'
        )
        put = self.ask("/api/files", form, content_type="multipart/form-data; boundary=x", **session)
        params = {"name": "read", "arguments": {"filename": "in.txt"}}
        called, _ = self.mcp("tools/call", params, **session)
        opening = self.ask("/api/session", b" ", **session)
        ready = self.readiness()
        result = called.get("result", {})
        good = {
            f"upload: {put}": put[0] == 201,
            f"call: {called}": "hello" in json.dumps(result) and not result.get("isError"),
            f"session: {opening}": opening[0] == 201,
            f"readiness: {ready}": ready[0] == 200,
        }
        return [what for what, is_good in good.items() if not is_good]


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that was used and killed, with all its notes."""
    folder = tmp_path_factory.mktemp("state")
    folder.chmod(0o755)
    (folder / "reads.py").write_text(TOOL)
    with somebody() as user:
        server = Server(folder, user)
        process = server.started()
        server.base, _, _ = playground_address(process)
        assert server.used() == []
        process.kill()
        process.communicate()
        shutil.copytree(server.state, folder / "as it was", symlinks=True)
        yield server


@pytest.fixture
def server(grown: Server) -> Server:
    """The server, its state folder as it was."""
    shutil.rmtree(grown.state, ignore_errors=True)
    shutil.copytree(grown.folder / "as it was", grown.state, symlinks=True)
    return grown


def test_state_folder_files_are_all_damaged_here(server: Server) -> None:
    named = {path for entry in ENTRIES for path in server.state.glob(entry)}

    assert set(server.state.rglob("*")) == named
    assert all(list(server.state.glob(entry)) for entry in ENTRIES)


def test_running_server_survives_damage_to_any_one_file(server: Server) -> None:
    whole = server.folder / "as it was"
    failed: dict[tuple[str, str], list[str]] = {}

    with server.running():
        for entry in ENTRIES:
            for name in WHILE_IT_RUNS:
                damage = DAMAGES[name]
                before = {path.name for path in server.state.iterdir()}
                damage(next(server.state.glob(entry)))
                wrong = server.used()
                if wrong:
                    failed[entry, name] = wrong
                # The next one meets the state as it was; what was set apart must be there.
                assert before - {entry.split("/")[0]} <= {path.name for path in server.state.iterdir()}
                shutil.rmtree(server.state)
                shutil.copytree(whole, server.state, symlinks=True)

    assert failed == {}


@pytest.mark.parametrize("damage", DAMAGES)
def test_server_starts_with_all_files_damaged(server: Server, damage: str) -> None:
    for entry in reversed(ENTRIES):
        for path in server.state.glob(entry):
            DAMAGES[damage](path)
    damaged = {path.name for path in server.state.iterdir() if path.name.endswith(".json")}

    with server.running():
        assert server.used() == []

    apart = {path.name.partition(".damaged-")[0] for path in server.state.glob("*.damaged-*")}
    assert apart >= damaged
    assert all(name in server.log for name in apart if name == "tokens.json")


def test_dangling_folder_link_named_and_dependents_refused(server: Server) -> None:
    _replaced_by(lambda path: path.symlink_to("/nowhere/sessions"))(server.state / "sessions")

    with server.running():
        refused = server.ask("/api/files?filename=in.txt", b"hello")
        ready = server.readiness()
        (server.state / "sessions").unlink()
        # Readiness may say for a second what it saw last.
        is_well = until(lambda: server.used() == [])

    assert refused[0] == 503
    assert "sessions is a link that leads to no folder" in refused[1]
    assert str(server.folder) not in refused[1]
    assert is_well, ready


def test_doctor_names_files_set_apart(server: Server) -> None:
    (server.state / "tokens.json").write_text("torn")
    with server.running():
        pass

    ended = subprocess.run(
        [sys.executable, "-m", "runner.cli.app", "doctor"],
        env=server.environment,
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert re.search(r"note +state +1 damaged files are set apart: tokens.json.damaged-\d+", ended.stdout)


@pytest.mark.parametrize("old", [True, False], ids=["used", "new"])
def test_server_on_full_disk_starts_or_names_need(server: Server, old: bool) -> None:
    shutil.rmtree(server.state)
    with small_disk(server.state):
        if old:
            shutil.copytree(server.folder / "as it was", server.state, symlinks=True, dirs_exist_ok=True)
        taken = fill(server.state)
        process = server.started()
        if old:
            server.base, _, server.log = playground_address(process)
            ready = server.readiness()
            # What is known needs no room, and once there is some all is well.
            taken.unlink()
            # Readiness may say for a second what it saw last.
            is_well = until(lambda: server.used() == [])
            stop(process)
            assert (ready[0], is_well) == (503, True)
        else:
            errors = process.communicate(timeout=100)[1]
            assert process.returncode != 0
            assert "state_dir" in errors
            assert "Traceback" not in errors


@pytest.mark.parametrize("damage", ["garbage", "a pipe"])
def test_proxy_starts_with_damaged_keys(server: Server, damage: str) -> None:
    for name in ("tokens.json", "tokens-copy.json"):
        DAMAGES[damage](server.state / name)

    process = server.started("proxy", "--", sys.executable, str(BEHIND))
    try:
        server.base, _, log = playground_address(process)
        ready = server.readiness()
    finally:
        stop(process)

    assert (ready[0], "set aside" in log) == (200, True)
