"""A hangup of commands that serve, while they start."""

import subprocess
import sys

import pytest

_START = """
import asyncio, os, signal
from runner.cli.start import stopped_by_signals

async def start():
    try:
        os.kill(os.getpid(), signal.SIG{})
        # More passes of the event loop than a signal needs.
        for _ in range(1000):
            await asyncio.sleep(0)
    finally:
        print("shut down", flush=True)
    return 1

raise SystemExit(asyncio.run(stopped_by_signals(start())))
"""


@pytest.mark.parametrize(
    ("before", "name", "status"), [((), "TERM", 0), ((), "HUP", 0), (("nohup",), "HUP", 1)]
)
def test_signal_during_start_shuts_down(before: tuple[str, ...], name: str, status: int) -> None:
    command = [*before, sys.executable, "-c", _START.format(name)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert (done.returncode, done.stdout) == (status, "shut down\n"), done.stderr
