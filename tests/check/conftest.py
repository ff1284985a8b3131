"""Small tool files with one fault each and with none, and the commands run as a user runs them."""

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import Ran


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A private folder for state and store."""
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def environment(folder: Path) -> Iterator[dict[str, str]]:
    user = f"t-{uuid.uuid4().hex[:12]}"
    variables = {
        key: value for key, value in os.environ.items() if not key.startswith(("RUNNER_", "COV_", "XDG_"))
    }
    yield {
        **variables,
        "HOME": str(folder),
        "RUNNER_STATE_DIR": str(folder / "state"),
        "RUNNER_STORE": (folder / "store").as_uri(),
        "RUNNER_USER": user,
    }
    shutil.rmtree(f"/tmp/{user}", ignore_errors=True)


@pytest.fixture
def run(environment: dict[str, str], folder: Path) -> Callable[..., Ran]:
    """Run `runner ARGUMENT...` to its end."""

    def run_runner(*arguments: str | Path, **more: str) -> Ran:
        ended = subprocess.run(
            [sys.executable, "-m", "runner.cli.app", *map(str, arguments)],
            env={**environment, **more},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=100,
            stdin=subprocess.DEVNULL,
        )
        return Ran(ended.returncode, ended.stdout, ended.stderr)

    return run_runner
