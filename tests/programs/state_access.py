"""State and store of an ordinary user, whose files are closed to that user one after the other.

It is for a user who is not root, to whom modes mean something. What became of the commands, and of the
files, is printed as JSON.

usage: state_access.py FOLDER
"""

import asyncio
import contextlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from runner.cli.app import app
from runner.cli.exits import end_with
from runner.cli.start import start
from runner.errors import StartError
from runner.files.sessions import Session, Sessions
from runner.homes.notes import HomeNote, HomeNotes
from runner.http.logins import Login, Logins
from runner.store.protocol import Put, Scope
from runner.store.spool import Spool
from runner.system.own_folders import HomeError
from runner.system.uids import Uids
from runner.users.capability_tokens import Tokens
from runner.users.identity import User

FOLDER = Path(sys.argv[1])
STATE, STORE, HOMES = (FOLDER / name for name in ("state", "store", "homes"))
TOOL = """
from fastmcp import FastMCP
mcp = FastMCP("says")
@mcp.tool
def says() -> str:
    return "hello"
"""
SETTINGS: dict[str, Any] = {"state_dir": STATE, "store": STORE.as_uri(), "homes": HOMES}


def main() -> None:
    os.environ |= {f"RUNNER_{name.upper()}": str(value) for name, value in SETTINGS.items()}
    HOMES.mkdir(mode=0o700)
    (FOLDER / "says.py").write_text(TOOL)
    (FOLDER / "in.txt").write_text("hello")
    before = commands("says", file=FOLDER / "in.txt")
    more_state()
    entries = [tried(path) for path in everything()]
    after = commands("says")
    print(json.dumps({"before": before, "entries": entries, "after": after, "running": while_it_runs()}))


def commands(tool: str, *, file: Path | None = None) -> dict[str, int]:
    """Run the real commands; return how they ended."""
    options = ["--file", str(file)] if file else []
    words = {"call": ["call", str(FOLDER / "says.py"), tool, *options], "doctor": ["doctor"]}
    return {
        name: subprocess.run(
            [sys.executable, "-m", "runner", *command],
            env={**os.environ, "RUNNER_USER": "nobody"},
            stdout=sys.stderr,
            check=False,
        ).returncode
        for name, command in words.items()
    }


def more_state() -> None:
    """Leave what servers leave behind: over HTTP, as root, with a store in S3, on all kinds of disks."""
    now = time.time()
    tokens = Tokens(STATE / "tokens.json")
    once = tokens.sign(user="ann", key="file", purpose="upload", now=now, ttl_s=600, once=True)
    tokens.verify(once, purpose="upload", key="file", now=now)
    uids = Uids(STATE, range(70_000, 70_100))
    uids.of("ann")
    with uids.of_nobody(), Sessions(STATE / "sessions").using(Session(user="ann", name="one")):
        pass
    Logins(STATE).note(User("ann", "web"), Login(end=int(now) + 600), now=now)
    asyncio.run(Spool(STATE / "spool").put_bytes(b"kept", Put(name="a.txt"), scope=Scope(user_id="ann")))
    home = os.open(HOMES, os.O_RDONLY | os.O_DIRECTORY)
    HomeNotes(STATE)._write_record(home, HomeNote(segment="nobody"))
    os.close(home)
    (STATE / "claims").mkdir(exist_ok=True)


def everything() -> list[Path]:
    """Return what is looked at: all of the state folder, and of the store all but the bytes of files."""
    state = [path for path in sorted(STATE.rglob("*")) if not path.is_symlink()]
    areas = sorted(STORE.glob("users/*"))
    within = [path for area in areas for path in sorted(area.iterdir())]
    store = [STORE, *STORE.glob("users"), *areas, *within]
    return [STATE, *state, *store]


def _started() -> int:
    start(SETTINGS, None)
    return 0


def _doctor() -> int:
    try:
        app(["doctor", "--repair", "--verify"])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def tried(path: Path) -> dict[str, Any]:
    """Close a file or folder, try to start and ask the doctor, open it again, and say what happened."""
    mode, before = path.stat().st_mode & 0o777, snapshot()
    path.chmod(0)
    try:
        report = {
            "call": ended(_started),
            "doctor": ended(_doctor),
        }
    finally:
        path.chmod(mode)
    rights = "u+rwx" if path.is_dir() else "u+rw"
    changed = snapshot() != before
    return {"path": str(path), "kind": kind(path), "rights": rights, "changed": changed, **report}


def while_it_runs() -> dict[str, object]:
    """Close files under code that has started already; return what it did, and what was there afterwards."""
    keys, copy = STATE / "tokens.json", STATE / "tokens-copy.json"
    tokens, now = Tokens(keys), time.time()
    signed = tokens.sign(user="ann", key="file", purpose="download", now=now, ttl_s=600)
    keys.write_text("torn")
    copy.chmod(0)
    try:
        tokens.sign(user="ann", key="file", purpose="download", now=now, ttl_s=600)
        refused = ""
    except StartError as error:
        refused = str(error)
    stayed = keys.read_text() == "torn"
    copy.chmod(0o600)
    holds = tokens.verify(signed, purpose="download", key="file", now=now) == "ann"

    spool, note = Spool(STATE / "spool"), next((STATE / "spool").rglob("records/all/files/*"))
    note.chmod(0)
    waiting, unsure, swept = len(spool.all()), spool.unsure(), asyncio.run(spool.sweep())
    note.chmod(0o600)

    record = STATE / "homes" / "nobody.json"
    record.chmod(0)
    home = os.open(HOMES, os.O_RDONLY | os.O_DIRECTORY)
    try:
        HomeNotes(STATE).read(home, "nobody")
        output = ""
    except HomeError as error:
        output = str(error)
    record.chmod(0o600)
    return {
        "keys": [refused, stayed, holds],
        "spool": [waiting, len(unsure), len(swept), len(spool.all())],
        "home": [output, HomeNotes(STATE).read(home, "nobody") is not None],
    }


def ended(command: Callable[[], Any]) -> dict[str, Any]:
    output, status = io.StringIO(), 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            end_with(command)
        except typer.Exit as exit_:
            status = exit_.exit_code
    return {"status": status, "said": output.getvalue()}


def snapshot() -> dict[str, tuple[int, int, bytes]]:
    """Return what lies in state and store: names, modes and contents."""
    return {str(path): described(path) for top in (STATE, STORE) for path in [top, *top.rglob("*")]}


def described(path: Path) -> tuple[int, int, bytes]:
    found = path.lstat()
    content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
    return found.st_mode, found.st_ino, content


def kind(path: Path) -> str:
    """Return the path without what names a user, a session or a token."""
    return "/".join(_general(part, path) for part in path.relative_to(FOLDER).parts)


def _general(part: str, path: Path) -> str:
    if part in ("nobody", "ann") and "users" in path.parts:
        return "*"
    if len(part) > 30:
        return f"*{Path(part).suffix}"
    return part


if __name__ == "__main__":
    main()
