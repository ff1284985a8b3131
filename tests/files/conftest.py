"""Other processes for tests of files: hosts that lease, tools that misbehave, writers that are killed."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from other_processes import Start


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python code in a process of its own, with pipes; it is killed when the test ends."""
    running: list[subprocess.Popen[str]] = []

    def start_one(code: str, *arguments: object) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        running.append(process)
        return process

    yield start_one
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder for homes and one for state."""
    (tmp_path / "homes").mkdir()
    (tmp_path / "state").mkdir()
    return tmp_path
