"""For all tests: what they need, nobody called slow on a busy machine, and the longest files first."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_template import CommandTemplate
from forkserver_template import Templates
from hypothesis import settings
from needs import LENGTHY, NEEDS, SLOW, TESTS, needs_of_fixtures, needs_of_module
from other_processes import Start
from somebody import somebody
from spread_cases import chosen

# What hangs is ended by pytest-timeout.
settings.register_profile("busy", deadline=None)
settings.load_profile("busy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cases",
        type=int,
        metavar="N",
        help="run at most N cases of each parametrised test that starts servers or uses the real kernel, "
        "and one of those in files marked long",
    )
    parser.addoption(
        "--real-starts",
        action="store_true",
        help="start each server as users do; otherwise most are forked from a process that has imported the "
        "framework (tests/command_template.py)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test with what it needs, before tests are chosen by markers."""
    names = frozenset(getattr(item, "fixturenames", ()))
    folders = item.path.relative_to(TESTS).parents[:-1]
    of_fixtures = (needs_of_fixtures(TESTS / folder, names) for folder in folders)
    for marker in needs_of_module(item.path).union(*of_fixtures):
        item.add_marker(marker)
    if folders and folders[-1].name in SLOW:
        item.add_marker("slow")
    if not LENGTHY.isdisjoint(map(str, (item.path.relative_to(TESTS), *folders))):
        item.add_marker("lengthy")


def _at_most(item: pytest.Item, cases: int) -> int:
    """Return how many cases of a test run: one in a long file, and all where they cost little."""
    marks = {mark.name for mark in item.iter_markers()}
    if "long" in marks:
        return 1
    return sys.maxsize if marks.isdisjoint({"slow", "kernel", *NEEDS}) else cases


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out cases where not all are to run, and begin with the files marked `long`.

    One of those that began last would keep all others waiting for it.
    """
    most = config.getoption("--cases")
    if most is not None:
        left = chosen((item.nodeid.partition("[")[0], _at_most(item, most), item) for item in items)
        kept = {id(item) for item in left}
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
        items[:] = left
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


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


@pytest.fixture(scope="session", autouse=True)
def _templates(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have forkservers of toolsets, and servers, forked from processes that have imported the framework."""
    if request.config.getoption("--real-starts"):
        yield
        return
    templates, commands = Templates(), CommandTemplate()
    with pytest.MonkeyPatch.context() as patch, commands.starting():
        patch.setattr("sandbox.host.forkserver.launch", templates.launch)
        yield
    templates.close()
    commands.close()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def user() -> Iterator[str]:
    """A user nobody else has; the home is removed afterwards."""
    with somebody() as name:
        yield name


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder for homes and one for state."""
    (tmp_path / "homes").mkdir()
    (tmp_path / "state").mkdir()
    return tmp_path
