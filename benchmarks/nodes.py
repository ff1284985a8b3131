"""What a fleet costs: the same calls in this process, and over Redis on worker nodes of this machine.

A call is timed on both ways in turns, so that what the machine does besides falls on both. Processor time is
that of host, nodes and Redis by the kernel's count, which a busy machine changes less than it does a clock.
S3 is Ceph RGW of `scripts/rgw`; no call here has a file.

usage: scripts/bench --nodes [--calls N] [--rounds N]
"""

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import psutil

from benchmarks.figures import TARGET_HEADINGS, Target, percentile, table
from runner.call import Request, execute
from runner.fleet.engine import FleetEngine
from runner.settings.settings import Settings
from runner.steps.listener import Nobody
from runner.steps.remote_executor import RemoteExecutor
from runner.toolset.toolset import Toolset
from runner.users.identity import User
from runner.worker.wire import LATEST_PROTOCOL, RequestFacts

__all__ = ["main"]

ADDS_LIMIT_MS, CANCEL_LIMIT_MS, AGAIN_LIMIT_S, TWO_LIMIT = 5.0, 50.0, 10.0, 1.7
_ROOT = Path(__file__).resolve().parents[1]
_TOOLS = _ROOT / "benchmarks" / "node_tools.py"
_PREFIX = "io.modelcontextprotocol/"
_META = {
    f"{_PREFIX}protocolVersion": LATEST_PROTOCOL,
    f"{_PREFIX}clientInfo": {"name": "bench", "version": "1"},
    f"{_PREFIX}clientCapabilities": {},
}
_READY_S = 120.0
_SETTLE_S = 0.0005
_LASTS_S = 3.0
_EACH = 12


def main() -> None:
    """Run the benchmark and print its report."""
    parser = argparse.ArgumentParser(prog="scripts/bench --nodes", description="What a fleet costs.")
    parser.add_argument("--calls", type=int, default=300, help="calls on each way (300)")
    parser.add_argument("--rounds", type=int, default=20, help="cancels (20)")
    parser.add_argument("--deaths", type=int, default=3, help="nodes that are killed (3)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="toolcell-bench-") as folder, _Machines(Path(folder)) as machines:
        targets = asyncio.run(_measured(machines, options.calls, options.rounds, options.deaths))
    print(table(TARGET_HEADINGS, [target.row() for target in targets]))  # noqa: T201
    print(f"\nload {os.getloadavg()[0]:.1f} at the end, {os.cpu_count()} processors")  # noqa: T201


class _Machines:
    """A Redis, a bucket, and as many worker nodes as are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "_Machines":
        started = subprocess.run(
            [_ROOT / "scripts/rgw", "start", "--with", str(os.getpid())], stdout=subprocess.PIPE, check=True
        )
        s3 = json.loads(started.stdout)
        bucket = f"bench-{secrets.token_hex(6)}"
        keys = {"aws_access_key_id": s3["access_key"], "aws_secret_access_key": s3["secret_key"]}
        boto3.client("s3", endpoint_url=s3["endpoint"], region_name="us-east-1", **keys).create_bucket(
            Bucket=bucket
        )
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        program = shutil.which("redis-server")
        if program is None:
            sys.exit("redis-server is missing: scripts/setup installs it")
        self.redis = subprocess.Popen(
            [program, "--port", str(port), "--save", "", "--appendonly", "yes", "--dir", str(self.folder)],
            stdout=subprocess.DEVNULL,
        )
        key = self.folder / "key"
        key.write_text(secrets.token_hex(32))
        key.chmod(0o600)
        self.settings: dict[str, Any] = {
            "engine": "docket",
            "redis_url": f"redis://127.0.0.1:{port}/0",
            "fleet_key_file": str(key),
            "store": f"s3://{bucket}/bench",
            "s3_endpoint": s3["endpoint"],
            "s3_region": "us-east-1",
            "s3_access_key": s3["access_key"],
            "s3_secret_key": s3["secret_key"],
            "log_level": "error",
            "max_calls_per_user": 16,
            "generated": "ignore",
        }
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self.nodes, self.redis):
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        for process in (*self.nodes, self.redis):
            process.wait(60)

    def named(self, name: str, **more: Any) -> dict[str, Any]:
        """Return the settings of one machine."""
        (self.folder / name / "homes").mkdir(parents=True, exist_ok=True)
        own = {
            "state_dir": str(self.folder / name / "state"),
            "homes": str(self.folder / name / "homes"),
        }
        return {**self.settings, **own, **more}

    def start(self) -> "subprocess.Popen[bytes]":
        """Start one more node, and wait until it is there."""
        name = f"node{len(self.nodes)}"
        given = {f"RUNNER_{key.upper()}": str(value) for key, value in self.named(name).items()}
        log = self.folder / f"{name}.log"
        with log.open("wb") as said:
            node = subprocess.Popen(
                [sys.executable, "-m", "runner", "worker", str(_TOOLS)],
                env={**os.environ, **given},
                stderr=said,
            )
        self.nodes.append(node)
        ends = time.monotonic() + _READY_S
        while "worker node " not in log.read_text():
            if node.poll() is not None or time.monotonic() > ends:
                sys.exit(f"a worker node did not start: {log.read_text()}")
            time.sleep(0.05)
        return node


async def _measured(machines: _Machines, calls: int, cancels: int, deaths: int) -> list[Target]:
    await asyncio.to_thread(machines.start)
    # Of the whole fleet: each node takes 16.
    settings = Settings(**machines.named("host", max_calls=64))
    async with Toolset.open(settings, [str(_TOOLS)]) as toolset, FleetEngine.open(toolset) as engine:
        adds = await _adds(toolset, engine, machines, calls)
        cancel = await _cancel(toolset, engine, cancels)
        two = await _two(toolset, engine, machines)
        again_s = await _again(toolset, engine, machines, deaths)
    return [
        Target(what="a fleet adds, median", limit=ADDS_LIMIT_MS, measured=adds, unit=" ms"),
        Target(what="cancel, median", limit=CANCEL_LIMIT_MS, measured=cancel, unit=" ms"),
        Target(what="placed anew after kill -9, longest", limit=AGAIN_LIMIT_S, measured=again_s, unit=" s"),
        Target(what="two nodes to one", limit=TWO_LIMIT, measured=two, unit=" times", bound="least"),
    ]


async def _adds(toolset: Toolset, engine: FleetEngine, machines: _Machines, calls: int) -> float:
    """Return what the way over Redis adds to a call, in milliseconds."""
    for remote in (None, engine):
        await _call(toolset, "echo", {"text": "hello"}, remote)
    taken: dict[bool, list[float]] = {False: [], True: []}
    processes = [psutil.Process(), psutil.Process(machines.nodes[0].pid), psutil.Process(machines.redis.pid)]
    used = dict.fromkeys((False, True), 0.0)
    for _ in range(calls):
        for far in (False, True):
            before, began = _cpu_s(processes), time.perf_counter()
            await _call(toolset, "echo", {"text": "hello"}, engine if far else None)
            taken[far].append((time.perf_counter() - began) * 1000)
            used[far] += _cpu_s(processes) - before
    for far, said in ((False, "here"), (True, "over Redis")):
        ms = taken[far]
        print(  # noqa: T201
            f"{said}: median {statistics.median(ms):.2f} ms, p5 {percentile(ms, 0.05):.2f} ms, p95 "
            f"{percentile(ms, 0.95):.2f} ms, processors {used[far] / calls * 1000:.2f} ms a call"
        )
    return statistics.median(taken[True]) - statistics.median(taken[False])


async def _cancel(toolset: Toolset, engine: FleetEngine, rounds: int) -> float:
    """Return after how long a cancelled call's process is gone, in milliseconds."""
    taken = []
    for _ in range(rounds):
        before = set(_tools())
        calling = asyncio.create_task(_call(toolset, "sleep", {"seconds": 60}, engine))
        while not (mine := set(_tools()) - before):  # noqa: ASYNC110 - a process of others says nothing
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        began = time.perf_counter()
        calling.cancel()
        while any(map(_runs, mine)):  # noqa: ASYNC110 - the same
            await asyncio.sleep(_SETTLE_S)
        taken.append((time.perf_counter() - began) * 1000)
    print(f"cancel: median {statistics.median(taken):.1f} ms, longest {max(taken):.1f} ms")  # noqa: T201
    return statistics.median(taken)


async def _two(toolset: Toolset, engine: FleetEngine, machines: _Machines) -> float:
    """Return the calls a second of two nodes, over those of one. The tools wait: no processor bounds it.

    A user's calls go to one node, so the fuller of the two decides when all have ended, and it takes calls of
    half a second by sixteens: of few of them the last sixteen would be much of the time.
    """
    rates = []
    for number in (1, 2):
        if number == 2:
            await asyncio.to_thread(machines.start)
        users = [f"user{number}-{one}" for one in range(32)]
        await asyncio.gather(*(_call(toolset, "echo", {"text": "hi"}, engine, user) for user in users))
        began = time.perf_counter()
        await asyncio.gather(
            *(_call(toolset, "sleep", {"seconds": 0.5}, engine, user) for user in users for _ in range(_EACH))
        )
        rates.append(len(users) * _EACH / (time.perf_counter() - began))
    print(f"calls that wait: {rates[0]:.1f} a second with one node, {rates[1]:.1f} with two")  # noqa: T201
    return rates[1] / rates[0]


async def _again(toolset: Toolset, engine: FleetEngine, machines: _Machines, deaths: int) -> float:
    """Return the longest time from the death of a node to the end of its call on another, in seconds."""
    taken = []
    for _ in range(deaths):
        # So long that its node says that it has begun, which nodes do every second: one that had not begun is
        # another case, which ends sooner.
        calling = asyncio.create_task(_call(toolset, "sleep_again", {"seconds": _LASTS_S}, engine, "dora"))
        while not engine.begun:  # noqa: ASYNC110 - nobody says when
            await asyncio.sleep(0.005)
        (name,) = engine.placed.values()
        victim = next(node for node in machines.nodes if name in _log_of(machines, node))
        victim.kill()
        began = time.perf_counter()
        completed = await calling
        if completed.processed.is_error:
            sys.exit(f"a call was lost: {completed.processed.value}")
        taken.append(time.perf_counter() - began - _LASTS_S)
        await asyncio.to_thread(machines.start)
    print(f"placed anew: {', '.join(f'{one:.1f}' for one in taken)} s")  # noqa: T201
    return max(taken)


def _log_of(machines: _Machines, node: "subprocess.Popen[bytes]") -> str:
    number = machines.nodes.index(node)
    return (machines.folder / f"node{number}.log").read_text() if node.poll() is None else ""


async def _call(
    toolset: Toolset, tool: str, arguments: dict[str, Any], remote: RemoteExecutor | None, user: str = "ann"
) -> Any:
    facts = RequestFacts(request_id=1, protocol=LATEST_PROTOCOL, session_id="s", transport="stdio")
    request = Request(
        user=User(user),
        method="tools/call",
        params={"name": tool, "arguments": arguments, "_meta": _META},
        facts=facts,
        client=Nobody(),
        inline_max_bytes=0,
    )
    return await execute(toolset, request, remote)


def _cpu_s(processes: list[psutil.Process]) -> float:
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))


def _tools() -> Iterator[int]:
    """Yield the processes in which a tool sleeps: it says so in its name."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.name() == "bench-sleeps":
                yield process.pid


def _runs(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return bool(process.name() == "bench-sleeps" and process.status() != psutil.STATUS_ZOMBIE)
    return False


if __name__ == "__main__":
    main()
