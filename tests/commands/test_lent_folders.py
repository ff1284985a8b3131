"""Granted folders are open as to their owner, and nothing else is: in every tier, by the kernel alone."""

import json
import os
import shutil
import stat
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from attack_support import interpreter_for_anybody, opened, snapshot
from support import ROOT, TOOLS, stop

pytestmark = [pytest.mark.needs_root, pytest.mark.release, pytest.mark.kernel]

OWNER, GROUP = 4242, 4343
"""Somebody who is neither root nor a user of the runner."""


@dataclass(frozen=True)
class Lent:
    """A server that is lent folders, in one tier, with what lies beside them."""

    process: "subprocess.Popen[str]"
    top: Path
    python: Path
    tools: Path
    tier: str
    user: str
    other: str

    def ask(self, user: str, tool: str, /, **arguments: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([user, tool, arguments]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the toolset in tier {self.tier} has ended"
        return json.loads(line)

    def tries(self, *acts: tuple[object, ...], user: str = "", tool: str = "tries") -> list[str]:
        """Try acts in a tool, and return what the kernel said."""
        written = [[str(word) for word in act] for act in acts]
        found: list[str] = self.ask(user or self.user, tool, acts=written)["results"]
        return found

    def would(self, *act: object, as_root: bool = False) -> str:
        """Try an act as the owner of the folders, in a process that nothing confines: the control."""
        program = [str(self.python), str(self.tools / "lent_acts.py"), *map(str, act)]
        own_mounts = ["unshare", "--mount"] if as_root else []
        ended = subprocess.run(
            [*own_mounts, *program],
            user=0 if as_root else OWNER,
            group=0 if as_root else GROUP,
            extra_groups=[],
            capture_output=True,
            text=True,
            check=True,
        )
        return ended.stdout


def planted(top: Path) -> None:
    """Lay out what is lent, and what lies beside it."""
    for name in ("write/sub", "read/sub", "beside"):
        (top / name).mkdir(parents=True)
    for name in (
        "write/own.txt",
        "write/sub/deep.txt",
        "read/own.txt",
        "read/sub/deep.txt",
        "beside/secret.txt",
    ):
        (top / name).write_text("as it was")
    (top / "write/out").symlink_to("../beside/secret.txt")
    (top / "write/outer").symlink_to("../beside")
    program = top / "write/program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for path in (top / "write", top / "read", top / "beside"):
        for entry in (path, *path.rglob("*")):
            os.chown(entry, OWNER, GROUP, follow_symlinks=False)


@pytest.fixture(scope="module")
def anybody() -> Iterator[tuple[Path, Path]]:
    assert os.geteuid() == 0, "that a runner takes the owner's id is for one that root starts; run as root"
    assert shutil.which("unshare"), "unshare is missing; install util-linux"
    # Not below /var, which anybody may read as a part of the system.
    top = Path(tempfile.mkdtemp(prefix="toolcell-lent-", dir="/srv"))
    top.chmod(0o755)
    yield top, interpreter_for_anybody(top)
    shutil.rmtree(top)


@pytest.fixture(scope="module", params=["process", "user", "namespace"])
def lent(request: pytest.FixtureRequest, anybody: tuple[Path, Path]) -> Iterator[Lent]:
    top, python = anybody
    world = top / request.param
    world.mkdir()
    # Its owner makes and removes there in the controls.
    os.chown(world, OWNER, GROUP)
    planted(world)
    tool_file = opened(TOOLS, top / "tools") / "lent.py"
    settings = {
        "isolation": request.param,
        "allow_read": [str(world / "read")],
        "allow_write": [str(world / "write")],
        "tools": {"other_tries": {"allow_read": [str(world / "write/sub")], "allow_write": []}},
        "worker_reuse": "call",
    }
    names = [f"t-{uuid.uuid4().hex[:12]}" for _ in range(2)]
    state = top / f"state-{request.param}"
    state.mkdir()
    os.umask(0o022)
    process = subprocess.Popen(
        [python, ROOT / "tests/programs/lending_driver.py", json.dumps(settings), state, tool_file],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "tests")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Lent(process, world, python, tool_file.parent, request.param, *names)
    finally:
        stop(process)
        for name in names:
            shutil.rmtree(f"/tmp/{name}", ignore_errors=True)


def test_write_in_granted_folder_keeps_owner_and_umask_mode(lent: Lent) -> None:
    new, folder = lent.top / "write/new.txt", lent.top / "write/made"

    assert lent.tries(("create", new), ("write", new), ("mkdir", folder)) == ["done"] * 3

    facts = new.stat()
    assert (facts.st_uid, facts.st_gid, stat.S_IMODE(facts.st_mode)) == (OWNER, GROUP, 0o644)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert (
        lent.tries(("rename", new, folder / "moved"), ("unlink", folder / "moved"), ("rmdir", folder))
        == ["done"] * 3
    )


def test_readable_grant_covers_whole_tree(lent: Lent) -> None:
    top = lent.top / "read"

    assert (
        lent.tries(("list", top), ("read", top / "own.txt"), ("read", top / "sub/deep.txt")) == ["done"] * 3
    )


CHANGES = {
    "write": ("write", "own.txt"),
    "truncate": ("truncate", "own.txt"),
    "open truncated": ("open_truncated", "own.txt"),
    "read truncated": ("read_truncated", "own.txt"),
    "create": ("create", "new"),
    "make a folder": ("mkdir", "new"),
    "remove": ("unlink", "own.txt"),
    "rename": ("rename", "own.txt", "renamed"),
    "move": ("rename", "sub/deep.txt", "moved"),
    "exchange": ("exchange", "own.txt", "sub/deep.txt"),
    "hard link": ("link", "own.txt", "linked"),
    "symbolic link": ("symlink", "own.txt", "linked"),
    "mode": ("chmod", "own.txt"),
    "time": ("utime", "own.txt"),
    "attribute": ("setxattr", "own.txt"),
    "fifo": ("fifo", "fifo"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_readable_grant_allows_no_change(lent: Lent, name: str) -> None:
    act, *names = CHANGES[name]
    ours = lent.top / "read"
    with copied(ours) as control:
        before = state(control)
        assert lent.would(act, *(control / part for part in names)) == "done"
        assert state(control) != before

    before = state(ours)
    lent.tries((act, *(ours / part for part in names)))

    assert state(ours) == before


AROUND = {
    "beside": ("read", "beside/secret.txt"),
    "listed beside": ("list", "beside"),
    "by two dots": ("read", "write/../beside/secret.txt"),
    "by two dots from deeper": ("read", "write/sub/../../beside/secret.txt"),
    "by a link in it": ("read", "write/out"),
    "by a link to a folder": ("read", "write/outer/secret.txt"),
    "written by a link": ("write", "write/out"),
    "made by a link": ("create", "write/outer/new"),
    "written beside": ("write", "beside/secret.txt"),
    "made beside": ("create", "beside/new"),
    "removed beside": ("unlink", "beside/secret.txt"),
    "linked in": ("link", "beside/secret.txt", "write/linked"),
    "linked in from what is read": ("link", "read/own.txt", "write/linked"),
    "moved in": ("rename", "beside/secret.txt", "write/moved"),
    "moved in from what is read": ("rename", "read/own.txt", "write/moved"),
    "moved out": ("rename", "write/own.txt", "beside/moved"),
    "exchanged": ("exchange", "write/own.txt", "beside/secret.txt"),
    "a fifo": ("fifo", "write/fifo"),
    "run": ("run", "write/program"),
    "the folder itself": ("rename", "write/sub/../../write", "beside/write"),
}


@pytest.mark.parametrize("name", AROUND)
def test_granted_folder_has_no_way_out(lent: Lent, name: str) -> None:
    act, *names = AROUND[name]
    with copied(lent.top) as control:
        assert lent.would(act, *(control / part for part in names)) == "done"

    before = state(lent.top)
    answer = lent.tries((act, *(f"{lent.top}/{part}" for part in names)))

    assert answer != ["done"]
    assert state(lent.top) == before


def test_granted_folder_cannot_be_mounted_over(lent: Lent) -> None:
    act = ("mount", lent.top / "beside", lent.top / "write/sub")

    assert lent.would(*act, as_root=True) == "done"
    assert lent.tries(act) == ["EPERM"]


def test_two_users_share_granted_folder_not_homes(lent: Lent) -> None:
    shared, private = lent.top / "write/shared", Path(f"/tmp/{lent.user}/private")

    assert lent.tries(("create", shared), ("create", private)) == ["done", "done"]
    # By the user id alone nothing would keep them apart.
    assert lent.would("read", private) == "done"

    assert (
        lent.tries(("read", shared), ("write", shared), ("unlink", shared), user=lent.other) == ["done"] * 3
    )
    reached = lent.tries(
        ("read", private),
        ("write", private),
        ("list", private.parent),
        ("link", private, lent.top / "write/linked"),
        ("symlink", private, lent.top / "write/led"),
        ("read", lent.top / "write/led"),
        ("unlink", lent.top / "write/led"),
        user=lent.other,
    )
    assert [answer == "done" for answer in reached] == [False, False, False, False, True, False, True]


def test_symlink_swapped_into_granted_path_opens_nothing(lent: Lent) -> None:
    sub, away, secret = lent.top / "write/sub", lent.top / "write/away", "write/sub/secret.txt"
    read = ("read", lent.top / "write/sub/deep.txt")
    assert lent.tries(read, tool="other_tries", user=lent.other) == ["done"]

    swapped = lent.tries(("rename", sub, away), ("symlink", lent.top / "beside", sub))
    assert swapped == ["done", "done"]
    assert lent.would("read", lent.top / secret) == "done"

    # A user who was not there before has processes that are made now.
    late = f"t-{uuid.uuid4().hex[:12]}"
    assert lent.tries(("read", lent.top / secret), tool="other_tries", user=late) != ["done"]
    assert lent.tries(("unlink", sub), ("rename", away, sub)) == ["done", "done"]
    shutil.rmtree(f"/tmp/{late}", ignore_errors=True)


def test_tool_with_own_folders_has_no_others(lent: Lent) -> None:
    own, general = lent.top / "write/sub/deep.txt", lent.top / "write/own.txt"

    assert lent.tries(("read", own), ("write", own), ("read", general)) == ["done"] * 3

    answers = lent.tries(("read", own), ("write", own), ("read", general), tool="other_tries")
    assert [answer == "done" for answer in answers] == [True, False, False]


@pytest.mark.parametrize("tier", ["process", "namespace"])
def test_mount_in_granted_folder_shared_and_read_only_kept(anybody: tuple[Path, Path], tier: str) -> None:
    top, python = anybody
    world = Path(tempfile.mkdtemp(prefix="mounted-", dir=top))
    for name in ("lent/closed", "lent/open", "state"):
        (world / name).mkdir(parents=True)
    settings = {"isolation": tier, "allow_write": [str(world / "lent")]}
    driver = ROOT / "tests/programs/lending_driver.py"
    tool_file = opened(TOOLS, top / "tools") / "lent.py"
    mounts = (
        "mount -t tmpfs none $1/open && mount -t tmpfs none $1/closed && echo x > $1/closed/file && "
        'mount -o remount,ro $1/closed && shift && exec "$@"'
    )
    command = ["sh", "-c", mounts, "sh", world / "lent", python, driver, json.dumps(settings)]
    user = f"t-{uuid.uuid4().hex[:12]}"
    acts = [
        ["create", "open/new"],
        ["read", "closed/file"],
        ["create", "closed/new"],
        ["write", "closed/file"],
    ]
    tried = [[act, f"{world}/lent/{name}"] for act, name in acts]

    ended = subprocess.run(
        list(map(str, ["unshare", "--mount", *command, world / "state", tool_file])),
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT / "tests")},
        input=json.dumps([user, "tries", {"acts": tried}]) + "\n",
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )

    assert json.loads(ended.stdout)["results"] == ["done", "done", "EROFS", "EROFS"]
    shutil.rmtree(f"/tmp/{user}", ignore_errors=True)


@pytest.mark.parametrize("place", ["/tmp", "/root"])
def test_environment_in_private_folder_works_or_explains(
    place: str, anybody: tuple[Path, Path], tmp_path: Path
) -> None:
    """The interpreter, what is installed beside it, and the tool file, all below such a folder."""
    top = Path(tempfile.mkdtemp(prefix="toolcell-env-", dir=place))
    python = interpreter_for_anybody(top)
    file = top / "tool.py"
    file.write_text(
        "import sys\nfrom fastmcp import FastMCP\nmcp = FastMCP('t')\n"
        "@mcp.tool\ndef where(username: str) -> str:\n    return sys.prefix\n"
    )
    for path in (top, file):
        path.chmod(0o755)
    environment = {
        "PATH": "/usr/bin:/bin",
        "RUNNER_STATE_DIR": str(tmp_path / "state"),
        "RUNNER_STORE": (tmp_path / "store").as_uri(),
    }

    ended = {
        tier: subprocess.run(
            [python, "-m", "runner", "call", file, "where", "--isolation", tier],
            env=environment,
            cwd="/",
            capture_output=True,
            text=True,
        )
        for tier in ("process", "user", "namespace")
    }
    shutil.rmtree(top)

    for tier, run in ended.items():
        if run.returncode == 5:
            assert (place, tier) == ("/root", "user")
            assert "/root is closed to other users" in run.stderr.splitlines()[0]
        else:
            assert (run.returncode, run.stdout.strip()) == (0, str(top / "venv")), run.stderr


def test_denial_names_option_that_would_allow_it(lent: Lent) -> None:
    written = lent.ask(lent.user, "write", path=str(lent.top / "read/own.txt"), text="x")["meta_data"]
    unseen = lent.ask(lent.user, "read", path=str(lent.top / "beside/secret.txt"))["meta_data"]
    quiet = lent.ask(lent.user, "swallow", path=str(lent.top / "read/own.txt"))["meta_data"]

    assert written["error_code"] == "E_INVALID_PATH"
    assert written["details"]["flag"] == f"--allow-write={lent.top}/read"
    assert "homes_for" in written["details"]["suggestion"]
    assert unseen["details"]["flag"].startswith(f"--allow-read={lent.top}/beside")
    assert [denial["flag"] for denial in quiet["denials"]] == [f"--allow-write={lent.top}/read"]


@contextmanager
def copied(folder: Path) -> Iterator[Path]:
    """Copy a folder to where its owner can change it, beside all that is lent."""
    top = Path(tempfile.mkdtemp(prefix="control-", dir="/var/tmp"))
    subprocess.run(["cp", "-a", folder, top / "copy"], check=True)
    for entry in (top, top / "copy"):
        os.chown(entry, OWNER, GROUP)
    top.chmod(0o755)
    yield top / "copy"
    shutil.rmtree(top)


def state(top: Path) -> Any:
    """Return all that there is to change in a folder."""
    attributes = {
        str(path): os.listxattr(path, follow_symlinks=False) for path in (top, *sorted(top.rglob("*")))
    }
    return snapshot(top), {name.removeprefix(str(top)): found for name, found in attributes.items()}
