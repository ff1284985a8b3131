"""A hangup of commands that serve, while they start."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from runner.system.stop_signals import StopSignals

_START = """
import asyncio, os, signal
from runner.cli.start import stopped_by_signals

async def start():
    try:
        os.kill(os.getpid(), signal.SIG{})
        await asyncio.sleep(60)
    finally:
        print("shut down", flush=True)
    return 1

asyncio.run(stopped_by_signals(start()))
"""


@pytest.mark.parametrize("name", ["TERM", "HUP"])
def test_signal_during_start_shuts_down(name: str) -> None:
    command = [sys.executable, "-c", _START.format(name)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert (done.returncode, done.stdout) == (0, "shut down\n"), done.stderr


@pytest.mark.anyio
async def test_hangup_stops_unless_nohup_ignores_it() -> None:
    loop, before = asyncio.get_running_loop(), signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        ignoring = StopSignals.install()
        os.kill(os.getpid(), signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signals = StopSignals.install()
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.wait_for(signals.stopped.wait(), 30)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
        signal.signal(signal.SIGHUP, before)

    assert not ignoring.stopped.is_set()
    assert signals.exit_status == 0
