"""Machines of a fleet whose clocks are wrong: by `faketime`, which every process of a node then asks.

The clock by which time is measured (CLOCK_MONOTONIC) stays right, as on a machine whose date was set wrongly.
"""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fleet_world import World, code_of, until, wrong_by

pytestmark = [pytest.mark.anyio, pytest.mark.needs_s3, pytest.mark.release]


def _clock_of(pid: int, offset: str) -> float:
    """Return what a process with the libraries and variables of a node takes for the time."""
    variables = dict(
        entry.split(b"=", 1) for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if entry
    )
    # `faketime` has given these to the node; this process gets nothing else from it.
    mine = {key.decode(): variables[key].decode() for key in (b"LD_PRELOAD", b"FAKETIME")}
    assert mine["FAKETIME"] == offset
    clock = [sys.executable, "-c", "import time; print(time.time())"]
    return float(subprocess.run(clock, env=mine, capture_output=True, check=True, text=True).stdout)


@pytest.mark.parametrize("offset", ["+2h", "-2h"])
async def test_node_with_clock_hours_off_serves_calls(world: World, offset: str) -> None:
    node = world.node("one", prefix=wrong_by(offset))
    wrong_s = _clock_of(node.process.pid, offset) - time.time()

    async with world.host() as host:
        storing = await host.call("keep", {"username": "x", "text": "kept over there", "name": "k.txt"})
        waited = await host.result("wait", {"seconds": 1.5})
        silent = await host.call("wait", {"seconds": 300})

    assert wrong_s == pytest.approx(7200 if offset == "+2h" else -7200, abs=120)
    # S3 refuses what is signed by a clock that is more than 15 minutes off.
    (refused,) = storing.processed.errors
    assert "RequestTimeTooSkewed" in str(refused.error)
    assert waited == "waited"
    assert code_of(silent) == "E_TIMEOUT"


async def test_call_moves_once_from_dead_node_to_node_with_wrong_clock(world: World) -> None:
    first = world.node("one")
    arguments = {"runs": str(world.folder / "runs"), "marker": "n", "seconds": 300.0}

    async with world.host() as host:
        await host.result("add", {"a": 1, "b": 2})
        await asyncio.to_thread(world.node, "two", prefix=wrong_by("-2h"))
        calling = asyncio.create_task(host.call("again", arguments))
        await until(lambda: world.runs("n"))
        first.kill()
        await until(lambda: world.runs("n") == 2)
        world.end_runs("n")
        ended = await calling
        after = await host.result("add", {"a": 1, "b": 2})

    assert ended.processed.value["results"] == "done"
    assert after == 3
