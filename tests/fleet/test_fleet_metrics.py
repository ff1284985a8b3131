"""Metrics of hosts and worker nodes: each call is counted where it is, and once in the fleet."""

import asyncio
import os
import signal
from collections.abc import Mapping
from typing import Any

import httpx2
import pytest
from fleet_world import ADD, INITIALIZE, World, host_process, mcp, until
from ports import free_port
from prometheus_client.parser import text_string_to_metric_families

pytestmark = [pytest.mark.anyio, pytest.mark.needs_s3, pytest.mark.needs_npm, pytest.mark.release]

WAITING = 5
TOKEN = "token-of-ann-which-is-long-enough"


async def _metrics(port: int) -> dict[tuple[str, str], float]:
    """Return the metrics at a port, by their name and their first label."""
    async with httpx2.AsyncClient(timeout=180) as client:
        answer = await client.get(f"http://127.0.0.1:{port}/metrics", timeout=120)
    assert answer.status_code == 200
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


async def _await_metric(port: int, name: str, label: str, value: float) -> None:
    """Wait until a metric has a value."""
    while (await _metrics(port)).get((name, label)) != value:
        await asyncio.sleep(0.05)


def _call(world: World, marker: str) -> Mapping[str, Any]:
    arguments = {"runs": str(world.folder / "runs"), "marker": marker, "seconds": 60.0}
    return {**ADD, "params": {"name": "once", "arguments": arguments}}


async def test_node_serves_its_own_metrics_even_while_cut_off(world: World) -> None:
    port = free_port()
    node = world.node("one", metrics_address=f"127.0.0.1:{port}")
    # Its store is looked at for the first time.
    await _await_metric(port, "toolcell_ready", "", 1)

    idle = await _metrics(port)
    async with world.host() as host:
        arguments = {"runs": str(world.folder / "runs"), "marker": "m", "seconds": 300.0}
        calling = asyncio.create_task(host.call("once", arguments))
        await until(lambda: world.runs("m"))
        busy = await _metrics(port)
        calling.cancel()
    world.redis.signal(signal.SIGSTOP)
    await _await_metric(port, "toolcell_ready", "", 0)
    cut_off = await _metrics(port)
    world.redis.signal(signal.SIGCONT)
    await until(lambda: len(node.names) >= 2)
    await _await_metric(port, "toolcell_ready", "", 1)

    assert (idle["toolcell_calls_running", "node"], idle["toolcell_ready", ""]) == (0, 1)
    assert busy["toolcell_calls_running", "node"] == 1
    assert cut_off["toolcell_fault", "fleet"] == 1
    assert cut_off["process_resident_memory_bytes", ""] > 0


async def test_host_metrics_separate_queued_from_running_calls(world: World) -> None:
    port = free_port()
    world.node("one", max_calls=1)
    more = {"metrics_address": f"127.0.0.1:{port}", "max_calls_per_user": 1 + WAITING}

    with host_process(world, "host", {TOKEN: "ann"}, **more) as host:
        opened = await asyncio.to_thread(mcp, host.base, INITIALIZE, None, TOKEN)
        session = opened.headers["mcp-session-id"]
        calls = [
            asyncio.create_task(asyncio.to_thread(mcp, host.base, _call(world, "w"), session, TOKEN))
            for _ in range(1 + WAITING)
        ]
        waiting = running = 0.0
        # A call that was sent counts as running until its node reports that it waits.
        while (waiting, running) != (WAITING, 1):
            found = await _metrics(port)
            waiting, running = (found[f"toolcell_calls_{state}", ""] for state in ("waiting", "running"))
        # It would let them end first, and nobody waits for them.
        host.process.kill()
        await asyncio.gather(*calls, return_exceptions=True)

    assert (waiting, running) == (WAITING, 1)


async def test_node_with_unwritable_state_is_not_ready(world: World) -> None:
    port = free_port()
    node = world.node("one", metrics_address=f"127.0.0.1:{port}")
    await _await_metric(port, "toolcell_ready", "", 1)
    state = node.folder / "state"

    os.rename(state, node.folder / "elsewhere")
    # With nothing in its place, the next call would recreate it.
    state.write_text("a file")
    await _await_metric(port, "toolcell_ready", "", 0)
    faults = {label for name, label in await _metrics(port) if name == "toolcell_fault"}
    state.unlink()
    os.rename(node.folder / "elsewhere", state)
    await _await_metric(port, "toolcell_ready", "", 1)

    assert "state" in faults
