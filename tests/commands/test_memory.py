"""A server whose container has little memory: hungry calls end with its name, and the host lives."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from fastmcp import Client
from support import ROOT, TOOLS, becomes, until

from sandbox.layers import cgroup

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

MIB = 1024 * 1024


@contextmanager
def little_memory(limit: int) -> Iterator[Path]:
    """Make a control group with a limit, below the one this process is in; yield its folder."""
    places = [place for place in cgroup.places() if place.memory]
    assert places, "mount control groups with the controller memory, and run this as who may make one"
    place = places[0]
    group = place.folder / f"little-{os.getpid()}-{time.monotonic_ns()}"
    group.mkdir()
    assert place.memory is not None
    (group / place.memory).write_text(str(limit))
    try:
        yield group
    finally:
        for _ in range(500):
            try:
                # What the host has made below goes with it.
                for below in group.glob("*/"):
                    below.rmdir()
                group.rmdir()
                break
            except OSError:
                time.sleep(0.02)


@contextmanager
def server_in(
    group: Path, environment: dict[str, str], *arguments: str
) -> Iterator[tuple[str, "subprocess.Popen[str]", Path]]:
    """Run a server in a control group; yield its address, its process and its log."""
    log = Path(environment["RUNNER_STATE_DIR"]).parent / "log.txt"
    command = [sys.executable, "-m", "runner", "serve", str(TOOLS / "hungry.py"), *arguments]
    enter = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
    with log.open("w") as file:
        process = subprocess.Popen(
            ["sh", "-c", enter, str(group), *command, "--transport", "http", "--port", "0"],
            env={**environment, "RUNNER_LOG_FORMAT": "json", "RUNNER_WORKER_REUSE": "user"},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stderr=file,
            text=True,
        )
    try:
        assert until(lambda: "serving" in log.read_text() or process.poll() is not None), log.read_text()
        address = re.search(r"http://\S+/mcp", log.read_text())
        assert address is not None, log.read_text()
        yield address.group(), process, log
    finally:
        process.terminate()
        process.wait(60)


async def eaten(url: str, mib: int) -> tuple[str | None, str]:
    async with Client(url) as client:
        result = await client.call_tool("eats", {"mib": mib, "hold_s": 1}, raise_on_error=False)
    (message,) = [block.text for block in result.content if block.type == "text"]
    return json.loads(message).get("meta_data", {}).get("error_code"), message


@pytest.mark.parametrize("tier", ["process", "namespace"])
async def test_low_memory_server_survives_hungry_calls(environment: dict[str, str], tier: str) -> None:
    limit = 700 * MIB
    with (
        little_memory(limit) as group,
        server_in(group, environment, "--isolation", tier) as (url, process, log),
    ):
        host = Path(f"/proc/{process.pid}/oom_score_adj").read_text()
        # Fewer than there are workers for, so that honest calls get one.
        hungry = [asyncio.create_task(eaten(url, 1500)) for _ in range(3)]
        async with Client(url) as client:
            honest = [await client.call_tool("honest", {"n": n}) for n in range(20)]
        ends = await asyncio.gather(*hungry)

        assert process.poll() is None
        assert [each.data for each in honest] == [n * n for n in range(20)]
        assert {code for code, _ in ends} == {"E_RESOURCE_LIMIT"}
        for _, message in ends:
            assert f'"value":{limit}' in message
            assert "server_memory_bytes" in message
        assert int(host) < 300
        assert await becomes(
            lambda: httpx2.get(url.replace("/mcp", "/readyz"), timeout=180).status_code == 200
        )
        assert "call limits exceed server memory" in log.read_text()
