"""The runner as users meet it: fixtures for commands and servers in processes of their own."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from somebody import somebody
from support import Ran, server_url, stop


@pytest.fixture
def newcomer() -> Iterator[str]:
    """The same, for a test that looks into a home where `user` is shared by the tests of a file."""
    with somebody() as name:
        yield name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A private folder for state and store."""
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def environment(folder: Path, user: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("RUNNER_", "COV_"))}
    return {
        **kept,
        "RUNNER_STATE_DIR": str(folder / "state"),
        "RUNNER_STORE": (folder / "store").as_uri(),
        "RUNNER_USER": user,
    }


@pytest.fixture
def run(environment: dict[str, str], folder: Path) -> Callable[..., Ran]:
    """Run `runner ARGUMENT...` to its end."""

    def run_runner(*arguments: str | Path, timeout: float = 100, **more: str) -> Ran:
        ended = subprocess.run(
            [sys.executable, "-m", "runner.cli.app", *map(str, arguments)],
            env={**environment, **more},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
        return Ran(ended.returncode, ended.stdout, ended.stderr)

    return run_runner


@pytest.fixture
def serve_http(environment: dict[str, str], folder: Path) -> Iterator[Callable[..., str]]:
    """Start `runner serve FILE --transport http`; returns the URL of its MCP endpoint."""
    with contextlib.ExitStack() as stack:

        def start(tool_file: Path, *arguments: str, **more: str) -> str:
            command = [sys.executable, "-m", "runner.cli.app", "serve", str(tool_file), "--transport", "http"]
            process = subprocess.Popen(
                [*command, "--port", "0", *arguments],
                env={**environment, **more},
                cwd=folder,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(stop, process)
            return server_url(process)

        yield start
