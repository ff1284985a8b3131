"""Sessions: whose files go when, through calls, servers that end, and the repair from a shell."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, TOOLS, open_toolset, request

from runner.call import Completed, execute
from runner.store.protocol import Origin
from runner.toolset.toolset import Toolset
from runner.users.identity import User

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]


async def call_in(toolset: Toolset, who: User, tool: str, **arguments: object) -> Completed:
    return await execute(toolset, replace(request(who.name, tool, arguments), user=who))


async def names(toolset: Toolset, who: User) -> list[str]:
    return [file.shown for file in await toolset.files(who).all()]


async def test_session_file_is_input_there_only_and_deleted_at_end(tmp_path: Path, user: str) -> None:
    """Source: S1-13."""
    one, two = User(user, session="one"), User(user, session="two")
    async with open_toolset(TOOLS / "files.py", tmp_path, persist_files_across_sessions=False) as toolset:
        await call_in(toolset, one, "make", name="kept.txt", size=3)
        read = await call_in(toolset, one, "read_only", filename="kept.txt")
        unknown = await call_in(toolset, two, "read_only", filename="kept.txt")
        listed = await names(toolset, one), await names(toolset, two)
        await toolset.end_session("one")
        after = await names(toolset, one)

    assert not read.processed.is_error
    assert unknown.processed.value["meta_data"]["error_code"] == "E_FILE_NOT_FOUND"
    assert unknown.processed.value["meta_data"]["details"]["nearest"] == []
    assert (listed, after) == ((["kept.txt"], []), [])


async def test_session_with_uploads_only_deletes_them_at_end(tmp_path: Path, user: str) -> None:
    one = User(user, session="one")
    async with open_toolset(TOOLS / "files.py", tmp_path, persist_files_across_sessions=False) as toolset:
        await toolset.files(one).put(b"x", name="kept.txt", origin=Origin.UPLOADED)
        before = await names(toolset, one)
        await toolset.end_session("one")
        after = await names(toolset, one)

    assert (before, after) == (["kept.txt"], [])


async def test_server_stop_ends_sessions_of_its_connections_only(tmp_path: Path, user: str) -> None:
    bound, unbound = User(user, session="connection"), User(user)
    async with open_toolset(TOOLS / "files.py", tmp_path, persist_files_across_sessions=False) as toolset:
        for who in (bound, unbound):
            await call_in(toolset, who, "make", name="kept.txt", size=3)

    assert (await names(toolset, bound), await names(toolset, unbound)) == ([], ["kept.txt"])


async def test_files_persist_by_default(tmp_path: Path, user: str) -> None:
    """Source: S1-12."""
    async with open_toolset(TOOLS / "files.py", tmp_path) as toolset:
        await call_in(toolset, User(user, session="one"), "make", name="kept.txt", size=3)
        await toolset.end_session("one")

    assert await names(toolset, User(user, session="two")) == ["kept.txt"]


async def test_expired_sessions_end_at_server_start(tmp_path: Path, user: str) -> None:
    options: dict[str, Any] = {"persist_files_across_sessions": False, "session_idle_s": 1000.0}
    async with open_toolset(TOOLS / "files.py", tmp_path, **options) as toolset:
        await call_in(toolset, User(user), "make", name="kept.txt", size=3)
    before = await names(toolset, User(user))
    for note in (toolset.settings.state_dir / "sessions").iterdir():
        os.utime(note, (0, 0))

    async with open_toolset(TOOLS / "files.py", tmp_path, **options) as later:
        after = await names(later, User(user))

    assert (before, after) == (["kept.txt"], [])


@pytest.mark.release
def test_doctor_repairs_store_and_names_losses(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RUNNER_")} | {
        "RUNNER_STATE_DIR": str(tmp_path / "state"),
        "RUNNER_STORE": (tmp_path / "store").as_uri(),
    }

    def runner(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "runner.cli.app", *words]
        return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=180)

    for name in ("good.txt", "lost.txt"):
        (tmp_path / name).write_text(name)
        assert runner("files", "put", str(tmp_path / name), "--user", "alice").returncode == 0
    sound = json.loads(runner("doctor", "--repair", "--json").stdout)
    for path in (tmp_path / "store").glob("users/alice/objects/*"):
        if path.read_text() == "lost.txt":
            path.unlink()
    (tmp_path / "store/users/alice/incoming/left").write_text("12345")

    repaired = runner("doctor", "--repair", "--json")
    text = runner("doctor", "--repair").stdout

    lines = {
        line["name"]: line for line in json.loads(repaired.stdout)["lines"] if line["section"] == "store"
    }
    assert [line for line in sound["lines"] if line["name"] == "damaged"] == []
    assert lines["left over"]["detail"] == "1 removed, 5 bytes"
    assert lines["damaged"]["detail"] == "'lost.txt' in users/alice: its bytes are missing"
    assert (lines["damaged"]["level"], repaired.returncode) == ("missing", 1)
    assert "0 removed, 0 bytes" in text
    assert "runner files rm" in text
    (tmp_path / "store/users/alice/records/all/files/lost.txt").write_text("torn")
    torn = json.loads(runner("doctor", "--json").stdout)["lines"]
    records = [
        [line["detail"] for line in each if line["name"] == "records"] for each in (sound["lines"], torn)
    ]
    assert records == [["sound"], ["users/alice/records/all/files/lost.txt cannot be read"]]
    assert "good.txt" in runner("files", "ls", "--user", "alice").stdout
