"""Context entered ahead of its use, and left by its owner."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runner.server.ahead import Ahead

ROOT = Path(__file__).parents[2]


class Opened:
    """A context that notes what happens to it."""

    def __init__(self, *, fault: Exception | None = None) -> None:
        self.noted: list[str] = []
        self.fault = fault
        self.goes_on = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        self.noted.append("begun")
        try:
            await self.goes_on.wait()
            if self.fault is not None:
                raise self.fault
            self.noted.append("entered")
            yield "value"
        finally:
            self.noted.append("left")


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_context_entered_early_and_left_by_its_owner() -> None:
    async def act() -> tuple[list[str], list[str], str]:
        opened = Opened()
        opened.goes_on.set()
        ahead = Ahead(opened.open())
        await turns()
        before = list(opened.noted)
        async with ahead as value:
            pass
        await ahead.discard()
        return before, opened.noted, value

    assert asyncio.run(act()) == (["begun", "entered"], ["begun", "entered", "left"], "value")


@pytest.mark.parametrize("entered", [True, False])
def test_unclaimed_context_is_exited(*, entered: bool) -> None:
    async def act() -> list[str]:
        opened = Opened()
        ahead = Ahead(opened.open())
        if entered:
            opened.goes_on.set()
        await turns()
        await ahead.discard()
        return opened.noted

    assert asyncio.run(act()) == (["begun", "entered", "left"] if entered else ["begun", "left"])


def test_early_entry_error_raised_to_entering_caller_only() -> None:
    async def act(*, enter: bool) -> list[str]:
        opened = Opened(fault=ValueError("no such file"))
        opened.goes_on.set()
        ahead = Ahead(opened.open())
        await turns()
        if enter:
            with pytest.raises(ValueError, match="no such file"):
                async with ahead:
                    pass
        await ahead.discard()
        return opened.noted

    assert asyncio.run(act(enter=True)) == asyncio.run(act(enter=False)) == ["begun", "left"]


@pytest.mark.kernel
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_during_start_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    homes = tmp_path / "homes"
    homes.mkdir(mode=0o700)
    environment = {
        **os.environ,
        "RUNNER_STATE_DIR": str(tmp_path / "state"),
        "RUNNER_STORE": (tmp_path / "store").as_uri(),
        "RUNNER_HOMES": str(tmp_path / "homes"),
        "RUNNER_USER": "t-stopped-early",
    }
    command = [sys.executable, "-m", "runner", "serve", "sample_tools/hello.py", "--transport", "stdio"]
    server = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )

    with server:
        deadline = time.monotonic() + 180
        while not any(homes.glob(".toolcell-import-*")) and server.poll() is None:
            assert time.monotonic() < deadline, "the server began to load nothing within three minutes"
            time.sleep(0.01)
        assert server.stdin is not None
        server.send_signal(number)
        errors = server.communicate(timeout=180)[1]

    assert (server.returncode, errors) == (130 if number is signal.SIGINT else 0, "")
    assert list(homes.iterdir()) == []
