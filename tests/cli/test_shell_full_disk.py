"""`runner files` on a full disk."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from disks import fill, small_disk

pytestmark = pytest.mark.needs_root


def files(disk: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "RUNNER_STATE_DIR": str(disk / "state"), "RUNNER_STORE": (disk / "store").as_uri()}
    runner = [sys.executable, "-m", "runner", "files", *command]
    return subprocess.run(runner, env=env, capture_output=True, text=True, check=False)


@pytest.mark.release
def test_full_disk_refuses_put_only(tmp_path: Path) -> None:
    source, large, out = tmp_path / "a.bin", tmp_path / "large.bin", tmp_path / "out.bin"
    source.write_bytes(os.urandom(70_000))
    large.write_bytes(os.urandom(5_000_000))
    with small_disk(tmp_path / "disk") as disk:
        assert files(disk, "put", str(source)).returncode == 0
        fill(disk)

        listed = files(disk, "ls", "--json")
        got = files(disk, "get", "a.bin", "--out", str(out))
        put = files(disk, "put", str(large))
        gone = files(disk, "rm", "a.bin")

    assert "a.bin" in json.dumps(json.loads(listed.stdout)), listed.stderr
    assert got.returncode == 0, got.stderr
    assert out.read_bytes() == source.read_bytes()
    assert put.returncode != 0
    assert "disk of My Files is full" in put.stderr
    assert "Traceback" not in put.stderr
    assert gone.returncode == 0, gone.stderr
