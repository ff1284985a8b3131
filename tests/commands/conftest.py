"""The runner as users meet it: fixtures for commands and servers in processes of their own."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attack_support import interpreter_for_anybody, opened
from somebody import somebody
from support import TOOLS, Ran, environment_in, serving_over_http


@pytest.fixture
def newcomer() -> Iterator[str]:
    """The same, for a test that looks into a home where `user` is shared by the tests of a file."""
    with somebody() as name:
        yield name


@pytest.fixture(scope="module")
def anybody(request: pytest.FixtureRequest) -> Iterator[tuple[Path, Path]]:
    """An interpreter and the tool file that a module names `TOOL`, for every user id."""
    assert os.geteuid() == 0, "these tiers are for a server that root starts; run these tests as root"
    top = Path(tempfile.mkdtemp(prefix="toolcell-anybody-", dir="/var/tmp"))
    top.chmod(0o755)
    yield interpreter_for_anybody(top), opened(TOOLS, top / "tools") / request.module.TOOL
    shutil.rmtree(top)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A private folder for state and store."""
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def environment(folder: Path, user: str) -> dict[str, str]:
    return environment_in(folder, RUNNER_USER=user)


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
            served = serving_over_http(tool_file, {**environment, **more}, *arguments, cwd=folder)
            return stack.enter_context(served)

        yield start
