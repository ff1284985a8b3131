"""Fixtures and options of all tests."""

import logging
import os
import subprocess
import sys
import textwrap
from collections.abc import Generator, Iterator
from logging.handlers import BufferingHandler
from pathlib import Path

import pytest
from forkserver_template import Templates
from hypothesis import settings
from other_processes import Start
from somebody import somebody
from spread_cases import chosen

TESTS = Path(__file__).parent
STARTS_SERVERS = frozenset(
    (
        *("benchmarks", "commands", "compat", "container", "denials", "fleet", "fuzz", "http", "network"),
        *("playground", "proxy", "sandbox", "selftest", "stalls", "worker"),
    )
)
"""Folders whose tests start servers, or hundreds of processes."""

# A test that hangs is ended by pytest-timeout.
settings.register_profile("busy", deadline=None)
settings.load_profile("busy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cases",
        type=int,
        metavar="N",
        help="run at most N cases of each parametrised test that starts servers or uses the real kernel",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of folders that start servers, before `-m` selects tests."""
    if not STARTS_SERVERS.isdisjoint(item.path.relative_to(TESTS).parts):
        item.add_marker("slow")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """Fail a test whose event loop logs an error: code under test failed where nothing awaits it."""
    log, errors = logging.getLogger("asyncio"), BufferingHandler(sys.maxsize)
    errors.setLevel(logging.ERROR)
    log.addHandler(errors)
    try:
        yield
    finally:
        log.removeHandler(errors)
    assert [record.getMessage() for record in errors.buffer] == []


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Apply `--cases` to the tests that start servers or use the real kernel."""
    most = config.getoption("--cases")
    if most is None:
        return
    selected = chosen(
        (item.nodeid.partition("[")[0], most if _is_costly(item) else sys.maxsize, item) for item in items
    )
    ids = {id(item) for item in selected}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in ids])
    items[:] = selected


def _is_costly(item: pytest.Item) -> bool:
    marks = {mark.name for mark in item.iter_markers()}
    return "slow" in marks or "kernel" in marks or any(name.startswith("needs_") for name in marks)


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python code in new processes, with pipes; kill them when the test ends."""
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


@pytest.fixture(scope="session", autouse=True)
def _templates() -> Iterator[None]:
    """Fork the forkservers of toolsets from a process that has imported the framework."""
    templates = Templates()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sandbox.host.forkserver.launch", templates.launch)
        # After this time without a reply to `server/discover`, a client assumes an older server.
        patch.setattr("mcp.client.session.DISCOVER_TIMEOUT_SECONDS", 180.0)
        yield
    templates.close()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def user() -> Iterator[str]:
    """A user of this test only; the home is removed afterwards."""
    with somebody() as name:
        yield name


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder for homes and one for state."""
    (tmp_path / "homes").mkdir()
    (tmp_path / "state").mkdir()
    return tmp_path
