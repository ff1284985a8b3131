"""Faults of disks, folders and files, by every way in: clients are told no path of ours, the log has it."""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from disks import fill, small_disk
from mcp_requests import META, VERSION
from support import ROOT, environment_in, stop, until

pytestmark = [pytest.mark.kernel, pytest.mark.needs_root, pytest.mark.release]

TOOLS = """
import time
from pathlib import Path
from fastmcp import FastMCP

mcp = FastMCP("faults")


@mcp.tool
def writes(username: str, size: int = 100_000) -> str:
    (Path.home() / "made.bin").write_bytes(bytes(size))
    return "written"


@mcp.tool
def makes(username: str) -> dict:
    (Path.home() / "made.txt").write_text("x" * 300_000)
    return {"results": "made", "artifacts": [{"filename": "made.txt"}]}


@mcp.tool
def reads(filename: str) -> str:
    return Path(filename).read_text()


@mcp.tool
def waits() -> str:
    time.sleep(3600)
"""
USERS = {f"token-of-{name}-token-of-{name}": name for name in ("ann", "bob", "carl", "dora", "eve", "fay")}


@dataclass
class Place:
    """A server whose state, store and homes lie on a small disk."""

    folder: Path
    url: str = ""

    @property
    def disk(self) -> Path:
        return self.folder / "disk"

    @property
    def tool_file(self) -> Path:
        return self.folder / "tools" / "faulty.py"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def paths(self) -> list[str]:
        return [str(self.folder), str(ROOT), sys.prefix, ".toolcell-", "uids.json", "/records/"]

    def leaks(self, text: str) -> list[str]:
        """Return what of ours is named. A home of the user's own is the user's."""
        own = re.sub(re.escape(str(self.disk / "homes")) + r"/(ann|bob|carl|dora|eve|fay)\b", "", text)
        return [path for path in self.paths if path in own]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    place = Place(tmp_path)
    with small_disk(place.disk):
        place.disk.chmod(0o755)
        (place.disk / "homes").mkdir()
        (place.disk / "homes").chmod(0o1777)
        place.tool_file.parent.mkdir()
        place.tool_file.write_text(TOOLS)
        tokens = tmp_path / "tokens.json"
        tokens.write_text(json.dumps(USERS))
        tokens.chmod(0o600)
        yield place


@contextlib.contextmanager
def served(place: Place, command: str = "serve", **settings: str) -> Iterator[Place]:
    environment = {
        **environment_in(place.disk),
        "RUNNER_HOMES": str(place.disk / "homes"),
        "RUNNER_AUTH__KIND": "static",
        "RUNNER_AUTH__TOKENS_FILE": str(place.folder / "tokens.json"),
        "RUNNER_IDLE_TIMEOUT_S": "5",
        **settings,
    }
    with (place.folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "runner.cli.app", command, str(place.tool_file), "--port", "0"]
            + (["--transport", "http"] if command == "serve" else []),
            env=environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stderr=log,
            text=True,
        )
    try:
        assert until(lambda: "/mcp" in place.log or process.poll() is not None)
        found = re.search(r"http://[\d.:]+(?=/mcp)", place.log)
        assert found is not None, place.log
        place.url = found[0]
        yield place
    finally:
        stop(process)


@dataclass
class Visitor:
    """A user, by every way in; what was said to it."""

    http: httpx2.Client

    def mcp(self, method: str, params: dict[str, Any]) -> str:
        named = params.get("name") or params.get("uri")
        headers = {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": VERSION,
            "mcp-method": method,
            **({"mcp-name": str(named)} if named else {}),
        }
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
        return self.http.post("/mcp", json=body, headers=headers).text

    def call(self, tool: str, **arguments: Any) -> str:
        return self.mcp("tools/call", {"name": tool, "arguments": arguments})

    def everything(self) -> dict[str, str]:
        """Return what is said by every way in."""
        texts = {
            "writes": self.call("writes"),
            "makes": self.call("makes"),
            "reads": self.call("reads", filename="kept.txt"),
            "files as a resource": self.mcp("resources/read", {"uri": "runner://files"}),
            "files as a prompt": self.mcp("prompts/get", {"name": "available_files"}),
            "tools": self.mcp("tools/list", {}),
        }
        for method, path in (
            ("GET", "/api/files"),
            ("POST", "/api/files?filename=new.bin"),
            ("POST", "/api/session"),
            ("DELETE", "/api/session"),
            ("GET", "/artifacts/nothing"),
            ("GET", "/play/info"),
            ("GET", "/play/assets/nothing"),
            ("GET", "/?key=nothing"),
            ("GET", "/readyz"),
            ("GET", "/healthz"),
            ("GET", "/nowhere"),
        ):
            content = os.urandom(20_000) if "filename" in path else None
            texts[f"{method} {path}"] = self.http.request(method, path, content=content).text
        return texts


@contextlib.contextmanager
def visitor(place: Place, user: str) -> Iterator[Visitor]:
    token = next(token for token, name in USERS.items() if name == user)
    with httpx2.Client(base_url=place.url, timeout=180, headers={"authorization": f"Bearer {token}"}) as http:
        yield Visitor(http)


@contextlib.contextmanager
def full(place: Place) -> Iterator[None]:
    taken = fill(place.disk)
    try:
        yield
    finally:
        taken.unlink()


@contextlib.contextmanager
def gone(folder: Path, instead: str | None = None) -> Iterator[None]:
    away = folder.with_name("away")
    folder.rename(away)
    if instead is not None:
        folder.write_text(instead)
    try:
        yield
    finally:
        if instead is not None:
            folder.unlink()
        away.rename(folder)


@contextlib.contextmanager
def broken(place: Place) -> Iterator[None]:
    place.tool_file.write_text("raise RuntimeError(f'something is wrong in {__file__}')")
    try:
        yield
    finally:
        place.tool_file.write_text(TOOLS)


@contextlib.contextmanager
def unwritable(*folders: Path) -> Iterator[None]:
    """Folders that cannot be written any more, even through open files."""
    with contextlib.ExitStack() as stack:
        for folder in folders:
            subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
            stack.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True)
            subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        yield


FAULTS: dict[str, Callable[[Place], AbstractContextManager[None]]] = {
    "a full disk": full,
    "a disk that is read-only": lambda place: unwritable(place.disk / "state", place.disk / "store"),
    "no state": lambda place: gone(place.disk / "state", instead="no folder"),
    "no store": lambda place: gone(place.disk / "store", instead="no folder"),
    "no homes": lambda place: gone(place.disk / "homes"),
    "a tool file that cannot be loaded": broken,
}
# Which path the log must have, because a client must not.
NAMED = {
    "a disk that is read-only": "disk/state",
    "no state": "disk/state",
    "no store": "disk/store",
    "no homes": "disk/homes",
    "a tool file that cannot be loaded": "tools/faulty.py",
}
CODES = re.compile(r'error_code\\*":\s*\\*"(E_\w+)')


def failures(texts: Mapping[str, str]) -> dict[str, str | None]:
    """Return the code of each error over MCP."""
    codes = {}
    for way, answer in texts.items():
        if '"isError":true' in answer.replace(" ", "") or '"error":{"code"' in answer.replace(" ", ""):
            found = CODES.search(answer)
            codes[way] = None if found is None else found[1]
    return codes


@pytest.mark.parametrize("fault", FAULTS)
def test_answers_name_no_host_path_and_errors_have_codes(fault: str, place: Place) -> None:
    with served(place):
        with visitor(place, "ann") as ann:
            ann.http.post("/api/files?filename=kept.txt", content=b"kept")
            before = ann.everything()
        since = len(place.log)
        texts: dict[str, str] = {}
        with FAULTS[fault](place):
            for user in ("ann", "bob"):
                with visitor(place, user) as who:
                    texts |= {f"{user}: {way}": answer for way, answer in who.everything().items()}
        named = NAMED.get(fault)
        is_logged = named is None or until(lambda: str(place.folder / named) in place.log[since:])

    assert failures(before) == {}
    codes = failures(texts)
    assert codes
    assert [way for way, code in codes.items() if code in (None, "E_INTERNAL")] == []
    assert {way: found for way, answer in texts.items() if (found := place.leaks(answer))} == {}
    assert is_logged, place.log[since:]
    assert "Traceback" not in place.log[since:]


def test_failed_reload_reported_to_author_without_folder(place: Place) -> None:
    with served(place, "dev"), visitor(place, "ann") as ann:
        with ann.http.stream("GET", "/events") as events:
            lines = events.iter_lines()
            with broken(place):
                message = next(line for line in lines if "something is wrong" in line)
        logged = place.log

    assert "{tool_folder}/faulty.py" in message
    assert place.leaks(message) == []
    assert str(place.tool_file) in logged
