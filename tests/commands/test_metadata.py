"""Metadata of another user's home that system calls taking a path reveal: this list, and no more."""

import json
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import ROOT

pytestmark = [pytest.mark.needs_root, pytest.mark.release, pytest.mark.kernel]

TOOL = "oracles.py"

# Each of these looks a name up, and answers otherwise where there is nothing of it.
LOOK_UP = frozenset(
    {
        "stat", "lstat", "statx", "statfs", "access", "faccessat", "open", "open to write",
        "open exclusively", "open as a folder", "open as a handle", "chdir", "truncate", "unlink", "rmdir",
        "mkdir", "symlink", "link", "link over", "rename", "execute", "key of a queue",
    }
)  # fmt: skip
NOTHING = frozenset[str]()
# Of the top folder of a home, of a file in it whose name is known.
TOLD = {
    "process": (LOOK_UP, LOOK_UP | {"readlink"}),
    "user": (LOOK_UP, NOTHING),
    "namespace": (NOTHING, NOTHING),
}


class Asking:
    """A process that holds a toolset in one tier, and answers one call after the other."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.name = f"t-{uuid.uuid4().hex[:12]}"

    def ask(self, user: str, tool: str, **arguments: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([1, f"{self.name}-{user}", tool, arguments]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())[1]["results"]


@contextmanager
def asking(anybody: tuple[Path, Path], tier: str) -> Iterator[Asking]:
    python, tool_file = anybody
    folder = Path(tempfile.mkdtemp(prefix="toolcell-oracle-", dir="/var/tmp"))
    settings = json.dumps({"unguarded": True, "isolation": tier})
    command = [python, ROOT / "tests/programs/limits_driver.py", folder, tool_file, settings]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "tests")}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        list(map(str, command)), stdin=pipe, stdout=pipe, env=environment, text=True
    ) as process:
        made = Asking(process)
        yield made
    shutil.rmtree(folder)
    for home in Path("/tmp").glob(f"{made.name}*"):
        shutil.rmtree(home, ignore_errors=True)


def ways_that_tell(asking: Asking, there: Path, missing: Path) -> frozenset[str]:
    known, unknown = (asking.ask("curious", "learns", path=str(path)) for path in (there, missing))
    return frozenset(way for way in known if known[way] != unknown[way])


@pytest.mark.parametrize("tier", TOLD)
def test_metadata_visible_of_another_home_matches_list(anybody: tuple[Path, Path], tier: str) -> None:
    with asking(anybody, tier) as toolset:
        toolset.ask("other", "copies")
        home = Path(f"/tmp/{toolset.name}-other")
        (home / "known").write_text("x" * 77)
        (home / "known-link").symlink_to("/somewhere")
        os.setxattr(home / "known", "user.secret", b"s")
        for name in ("known", "known-link"):
            os.chown(home / name, home.stat().st_uid, home.stat().st_gid, follow_symlinks=False)

        of_itself = toolset.ask("other", "learns", path=str(home / "own"))
        of_home = ways_that_tell(toolset, home, home.with_name(f"{home.name}-missing"))
        of_file = ways_that_tell(toolset, home / "known", home / "missing")
        elsewhere = toolset.ask("curious", "sees", word=home.name)

    assert (of_itself["stat"], of_itself["open"]) == ("0", "opened")
    assert (of_home, of_file) == TOLD[tier]
    assert elsewhere == []


@pytest.mark.parametrize("tier", TOLD)
def test_open_files_allow_copy_and_attribute_reads(anybody: tuple[Path, Path], tier: str) -> None:
    with asking(anybody, tier) as toolset:
        found = toolset.ask("curious", "copies")

    assert {"own", "own-copied"} <= set(found)
