"""What is said of a server whose Python its user id may not run: which folder refuses, behind all links."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.kernel

SOMEBODY = 64321


def entered(program: Path) -> subprocess.CompletedProcess[str]:
    """Become somebody who runs a program that prints its user id; return how it went."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        told = {
            "groups": [],
            "rlimits": [],
            "uid": SOMEBODY,
            "command": [str(program), "-u"],
            "environment": {},
            "listener": listener.fileno(),
        }
        return subprocess.run(
            [sys.executable, "-P", "-m", "runner.up.enter"],
            input=json.dumps(told),
            pass_fds=(listener.fileno(),),
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder that everybody may pass, with all above it."""
    assert os.geteuid() == 0, "this needs root, which alone can become somebody else"
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    return tmp_path


def program_in(folder: Path) -> Path:
    folder.mkdir()
    program = folder / "id"
    program.write_bytes(Path("/usr/bin/id").read_bytes())
    program.chmod(0o755)
    return program


def test_the_folder_behind_a_link_that_lets_nobody_through_is_named(place: Path) -> None:
    target = program_in(place / "own")
    link = place / "python"
    link.symlink_to(target)
    assert entered(link).stdout.strip() == str(SOMEBODY)
    (place / "own").chmod(0o700)

    refused = entered(link)

    assert refused.returncode == 5
    assert f"{link}, which is {target}," in refused.stderr
    assert f"which the folder {place / 'own'} does not let through" in refused.stderr


def test_a_program_that_only_its_owner_may_run_is_named_itself(place: Path) -> None:
    program = program_in(place / "open")
    program.chmod(0o700)

    refused = entered(program)

    assert refused.returncode == 5
    assert f"{program} may not be run by the user id {SOMEBODY}" in refused.stderr
