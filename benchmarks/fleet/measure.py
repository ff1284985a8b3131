"""What a call costs in a fleet, measured here: commands of Redis, processor time, requests to S3.

One Redis, one host and one worker node on this machine, each a process of its own. Where other programs run
beside them, latency says little, and processor time and numbers of commands say what they would say anyway.
What goes on without any call (heartbeats, reads that wait) is measured first and taken off.

usage: scripts/scale --measure [--calls N] [--checkout FOLDER]
"""

import argparse
import asyncio
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import psutil
from botocore.config import Config
from pydantic import SecretStr

from benchmarks.blocks import Load, run_block
from benchmarks.figures import table
from benchmarks.report import load_average
from benchmarks.servers import ROOT, TOOLS, Server, end_with_parent, environment, free_port, serving, stop
from benchmarks.wire import HttpConnection
from runner.store.protocol import Put, Scope
from runner.store.s3.bucket import BucketAddress
from runner.store.s3.store import S3Store

__all__ = ["main"]

_MIB = 1 << 20
_USERS = 40
_SETTLE_S = 3.0
_IDLE_S = 15.0
_START_S = 120.0
_LOADS = (
    Load(name="stocked", think_s=0.012),
    Load(name="saturated, 1 client"),
)
# Tasks that do nothing, added one by one as a host adds calls, each awaited by its result.
_NOOP = """
import asyncio, sys, time
from datetime import timedelta
from docket import Docket, Worker

done = asyncio.Event()

async def nothing(text: str) -> None:
    done.set()

async def main(url: str, tasks: int) -> None:
    took = []
    async with Docket(name="noop", url=url, execution_ttl=timedelta(0)) as docket:
        docket.register(nothing)
        async with Worker(docket, schedule_automatic_tasks=False) as worker:
            running = asyncio.create_task(worker.run_forever())
            await docket.add(nothing)("first")
            await done.wait()
            await asyncio.sleep(1)
            print("ready", flush=True)
            sys.stdin.readline()
            for _ in range(tasks):
                done.clear()
                began = time.perf_counter()
                await docket.add(nothing)("text")
                await done.wait()
                took.append(time.perf_counter() - began)
            print(sorted(took)[tasks // 2], flush=True)
            sys.stdin.readline()
            running.cancel()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""
# How long a process that listens takes for a message that tells it that a place is free.
_HEARD = """
import asyncio, sys, time
from redis.asyncio import Redis

async def main(url: str, messages: int) -> None:
    async with Redis.from_url(url) as redis, redis.pubsub() as channel:
        await channel.subscribe("freed")
        await channel.get_message(timeout=5)
        print("ready", flush=True)
        heard, began = 0, None
        while heard < messages:
            if await channel.get_message(ignore_subscribe_messages=True, timeout=1.0):
                began = began or time.process_time()
                heard += 1
        print((time.process_time() - began) / (heard - 1), flush=True)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Redis:
    """A Redis of our own.

    Attributes:
        port: Where it listens on loopback.
        process: Its process.
    """

    port: int
    process: "subprocess.Popen[bytes]"

    @property
    def url(self) -> str:
        """Return its address."""
        return f"redis://127.0.0.1:{self.port}/0"

    def ask(self, *words: str) -> str:
        """Return what it answers to one command."""
        return subprocess.run(
            ["redis-cli", "-p", str(self.port), *words], stdout=subprocess.PIPE, check=True, text=True
        ).stdout

    def commands(self) -> Counter[str]:
        """Return how often each command came until now, those inside scripts among them."""
        said = self.ask("info", "commandstats")
        lines = (line.partition(":") for line in said.splitlines() if line.startswith("cmdstat_"))
        return Counter(
            {
                name.removeprefix("cmdstat_"): int(rest.partition(",")[0].split("=")[1])
                for name, _, rest in lines
            }
        )

    def processed(self) -> int:
        """Return how many commands clients have sent until now."""
        said = self.ask("info", "stats")
        return int(
            next(line for line in said.splitlines() if line.startswith("total_commands_p")).split(":")[1]
        )


@contextmanager
def _redis(folder: Path) -> Iterator[_Redis]:
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=end_with_parent)
    redis = _Redis(port=port, process=process)
    try:
        _wait(lambda: subprocess.run(
            ["redis-cli", "-p", str(port), "ping"], capture_output=True, check=False
        ).stdout == b"PONG\n")  # fmt: skip
        yield redis
    finally:
        stop(process)


def _wait(there: Callable[[], bool]) -> None:
    until = time.monotonic() + _START_S
    while not there():
        if time.monotonic() > until:
            raise RuntimeError(f"what was started is not ready after {_START_S:.0f} s")
        time.sleep(0.2)


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(prog="scripts/scale --measure", description="Measure what a call costs.")
    parser.add_argument("--calls", type=int, default=100, help="calls in a block (100)")
    parser.add_argument("--rounds", type=int, default=8, help="blocks of each, in turns (8)")
    parser.add_argument("--part", choices=_PARTS, action="append", help="only this")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="whose runner is measured")
    options = parser.parse_args()
    _need(options)
    _say(f"load average at the start: {load_average()}")
    with tempfile.TemporaryDirectory(prefix="toolcell-scale-") as made:
        for part in options.part or _PARTS:
            _PARTS[part](_made(Path(made), part), options)
    _say(f"load average at the end: {load_average()}")


def _need(options: argparse.Namespace) -> None:
    """End with a sentence where something is missing that is measured."""
    for program in ("redis-server", "redis-cli", "redis-benchmark"):
        if shutil.which(program) is None:
            sys.exit(f"scripts/scale: {program} is missing; apt-get install redis-server redis-tools")
    asked = [str(_python(options.checkout)), "-c", "import docket, runner.fleet"]
    if subprocess.run(asked, capture_output=True, check=False, cwd=options.checkout).returncode:
        sys.exit(f"scripts/scale: {options.checkout} has no engine over pydocket; name one with --checkout")


def _of_first(folder: Path, options: argparse.Namespace) -> None:
    """Say what the first call of a user costs, and later ones beside as many users."""
    tokens = {f"token-of-user-{number:05}": f"user-{number}" for number in range(_USERS)}
    written = folder / "tokens.json"
    written.write_text(json.dumps(tokens))
    written.chmod(0o600)
    settings = {
        "RUNNER_USER": "",
        "RUNNER_AUTH__KIND": "static",
        "RUNNER_AUTH__TOKENS_FILE": str(written),
    }
    with serving("runner", "http", folder, settings=settings, checkout=options.checkout) as server:
        process = psutil.Process(server.process.pid)
        for what in ("first", "second", "third"):
            before_s = _tree_s(process)
            took = [_call(server.port, token) for token in tokens]
            # What is made ahead of the next call is made by then.
            time.sleep(_SETTLE_S)
            spent = (_tree_s(process) - before_s) / _USERS
            _say(
                f"{what} call of {_USERS} users: {1000 * statistics.median(took):.0f} ms at the median, "
                f"{1000 * spent:.1f} ms of a processor in all"
            )


def _call(port: int, token: str) -> float:
    connection = HttpConnection(port, token)
    try:
        began = time.perf_counter()
        connection.send(connection.frame(connection.call(1, "echo_home", {"text": "hello"}), "echo_home"))
        answers: list[bytes] = []
        while not answers:
            answers = connection.receive()
        if "result" not in json.loads(answers[0]):
            raise RuntimeError(f"a call failed: {answers[0].decode(errors='replace')[:2000]}")
        return time.perf_counter() - began
    finally:
        connection.close()


def _tree_s(process: psutil.Process) -> float:
    """Return the processor time of a process and all below it, of those that have ended too."""
    return sum(_cpu_s(one, ended=True) for one in (process, *process.children(recursive=True)))


def _of_docket(folder: Path, options: argparse.Namespace) -> None:
    with _redis(folder) as redis:
        _of_noop(redis, _python(options.checkout), options.calls)
        _of_heard(redis, _python(options.checkout), 20_000)
        _of_redis(redis)


def _of_noop(redis: _Redis, python: Path, tasks: int) -> None:
    """Say what one task of pydocket costs that does nothing."""
    process = subprocess.Popen(
        [str(python), "-c", _NOOP, redis.url, str(tasks)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=end_with_parent,
    )  # fmt: skip
    with process:
        assert process.stdin  # noqa: S101 - it is a pipe
        assert process.stdout  # noqa: S101 - it is a pipe
        process.stdout.readline()
        idle = _spent(redis, {"both": process.pid})
        time.sleep(_IDLE_S)
        idle = _less(_spent(redis, {"both": process.pid}), idle)
        begun = _spent(redis, {"both": process.pid})
        process.stdin.write("\n")
        process.stdin.flush()
        median_s = float(process.stdout.readline())
        spent = _less(_spent(redis, {"both": process.pid}), begun)
        process.stdin.write("\n")
        process.stdin.flush()
    _say(f"pydocket, a task that does nothing: {1000 * median_s:.2f} ms at the median, one at a time")
    _tell(spent, idle, tasks)


def _of_heard(redis: _Redis, python: Path, messages: int) -> None:
    process = subprocess.Popen(
        [str(python), "-c", _HEARD, redis.url, str(messages)],
        stdout=subprocess.PIPE, text=True, preexec_fn=end_with_parent,
    )  # fmt: skip
    with process:
        assert process.stdout  # noqa: S101 - it is a pipe
        process.stdout.readline()
        begun = psutil.Process(redis.process.pid).cpu_times()
        subprocess.run(
            ["redis-benchmark", "-p", str(redis.port), "-q", "-n", str(messages), "-c", "1", "-P", "16",
             "publish", "freed", "x"], stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        ended = psutil.Process(redis.process.pid).cpu_times()
        each_s = float(process.stdout.readline())
    of_redis = (ended.user + ended.system - begun.user - begun.system) / messages
    _say(
        f"a message on a channel: {1e6 * each_s:.0f} us of whoever listens, {1e6 * of_redis:.1f} us of Redis"
    )


def _of_redis(redis: _Redis) -> None:
    """Say what Redis makes of the simplest commands, and what processor time one takes."""
    rows = []
    for name, words in {
        "GET": ("get", "key"),
        "SET": ("set", "key", "x" * 100),
        "XADD, 2 KiB": ("xadd", "stream", "MAXLEN", "~", "1000", "*", "said", "x" * 2048),
        "HSET": ("hset", "hash", "state", "begun"),
        "a script that sets one value": ("eval", "return redis.call('set', KEYS[1], '1')", "1", "key"),
    }.items():
        for pipeline in (1, 16):
            count = 40_000
            begun = psutil.Process(redis.process.pid).cpu_times()
            said = subprocess.run(
                ["redis-benchmark", "-p", str(redis.port), "-q", "-n", str(count), "-c", "16", "-P",
                 str(pipeline), *words], stdout=subprocess.PIPE, text=True, check=True,
            ).stdout  # fmt: skip
            ended = psutil.Process(redis.process.pid).cpu_times()
            used_us = 1e6 * (ended.user + ended.system - begun.user - begun.system) / count
            rate = (
                said.replace("\r", "\n").strip().splitlines()[-1].split("requests")[0].split(":")[-1].strip()
            )
            rows.append((name, str(pipeline), rate, f"{used_us:.1f}"))
    _say(
        "redis-benchmark, 16 connections\n" + table(("command", "at once", "a second", "processor us"), rows)
    )


def _of_fleet(folder: Path, options: argparse.Namespace) -> None:
    """Say what a call costs through a host and a worker node, and without them."""
    with _redis(folder) as redis, ExitStack() as stack:
        settings = _settings(redis, _s3(), folder)
        alone = stack.enter_context(
            serving("runner", "http", _made(folder, "alone"), checkout=options.checkout)
        )
        node = stack.enter_context(_node(folder, settings, options.checkout))
        _wait(lambda: node.poll() is not None or "toolcell:node:" in redis.ask("keys", "toolcell:node:*"))
        if node.poll() is not None:
            raise RuntimeError(f"the worker node ended with {node.returncode}")
        host = stack.enter_context(
            serving(
                "runner", "http", _made(folder, "host"), "--engine", "docket",
                settings=settings, checkout=options.checkout,
            )
        )  # fmt: skip
        tool, arguments = "echo_async", {"text": "hello"}
        for each in (alone, host):
            run_block(each, tool, arguments, calls=40, load=_LOADS[0])
        pids = {"host": host.process.pid, "node": node.pid}
        begun = _spent(redis, pids)
        time.sleep(_IDLE_S)
        idle = _less(_spent(redis, pids), begun)
        clients = redis.ask("info", "clients").splitlines()[1]
        _say(f"a fleet of one host and one node, without calls: {clients}")
        for name, used in idle.cpu_s.items():
            _say(f"  {name}: {1000 * used / idle.seconds:.2f} ms of a processor a second")
        for load in _LOADS:
            _of_load(redis, {"alone": alone, "fleet": host}, pids, load, idle, options)


def _settings(redis: _Redis, server: Mapping[str, str], folder: Path) -> dict[str, str]:
    key = folder / "fleet.key"
    key.write_text(secrets.token_urlsafe(48))
    key.chmod(0o600)
    return {
        "RUNNER_ENGINE": "docket",
        "RUNNER_REDIS_URL": redis.url,
        "RUNNER_FLEET_KEY_FILE": str(key),
        "RUNNER_STORE": f"s3://{_bucket(server)}",
        "RUNNER_S3_ENDPOINT": server["endpoint"],
        "RUNNER_S3_ACCESS_KEY": server["access_key"],
        "RUNNER_S3_SECRET_KEY": server["secret_key"],
        "RUNNER_S3_PATH_STYLE": "true",
    }


def _of_load(
    redis: _Redis,
    servers: Mapping[str, Server],
    pids: Mapping[str, int],
    load: Load,
    idle: "_Spent",
    options: argparse.Namespace,
) -> None:
    """Say what a call costs with and without the fleet, in blocks that take turns."""
    cpu_ms = defaultdict[str, list[float]](list)
    latencies_s = defaultdict[str, list[float]](list)
    for _ in range(options.rounds):
        for name, server in servers.items():
            watched = pids if name == "fleet" else {"host": server.process.pid}
            begun = _spent(redis, watched)
            block = run_block(server, "echo_async", {"text": "hello"}, calls=options.calls, load=load)
            spent = _less(_spent(redis, watched), begun)
            latencies_s[name] += block.latencies_s
            share = spent.seconds / idle.seconds
            for process, used in spent.cpu_s.items():
                own = used - (idle.cpu_s.get(process, 0.0) * share if name == "fleet" else 0.0)
                cpu_ms[f"{name}: {process}"].append(1000 * own / options.calls)
            if name == "fleet":
                last = spent
    for name, took in latencies_s.items():
        _say(f"{name}, {load.name}: {1000 * statistics.median(took):.2f} ms at the median")
    rows = [
        (process, f"{min(used):.2f}", f"{statistics.median(used):.2f}") for process, used in cpu_ms.items()
    ]
    _say(table(("processor time of a call, ms", "least", "median"), rows))
    _tell_commands(last, idle, options.calls)


@contextmanager
def _node(folder: Path, settings: Mapping[str, str], checkout: Path) -> Iterator["subprocess.Popen[bytes]"]:
    own = _made(folder, "node")
    variables = {**environment(own), **settings}
    variables.pop("RUNNER_USER")
    with (folder / "node.log").open("wb") as log:
        process = subprocess.Popen(
            [str(_python(checkout)), "-m", "runner", "worker", str(TOOLS)],
            stdout=log, stderr=log, cwd=checkout, env=variables, preexec_fn=end_with_parent,
        )  # fmt: skip
    try:
        yield process
    except BaseException as error:
        error.add_note((folder / "node.log").read_text()[-3000:])
        raise
    finally:
        stop(process)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spent:
    """What was used in some time.

    Attributes:
        seconds: The time.
        commands: How often each command came to Redis.
        sent: How many commands clients sent.
        cpu_s: Processor time, by process; of Redis too.
    """

    seconds: float
    commands: Counter[str]
    sent: int
    cpu_s: dict[str, float]


def _spent(redis: _Redis, pids: Mapping[str, int]) -> _Spent:
    used: dict[str, float] = {}
    for name, pid in {**pids, "redis": redis.process.pid}.items():
        process = psutil.Process(pid)
        used[name] = _cpu_s(process)
        below = process.children(recursive=True)
        if below:
            used[f"workers of {name}"] = sum(_cpu_s(child, ended=True) for child in below)
    return _Spent(seconds=time.monotonic(), commands=redis.commands(), sent=redis.processed(), cpu_s=used)


def _cpu_s(process: psutil.Process, *, ended: bool = False) -> float:
    times = process.cpu_times()
    own = float(times.user + times.system)
    return own + float(times.children_user + times.children_system) if ended else own


def _less(after: _Spent, before: _Spent) -> _Spent:
    return _Spent(
        seconds=after.seconds - before.seconds,
        commands=after.commands - before.commands,
        sent=after.sent - before.sent,
        cpu_s={name: used - before.cpu_s.get(name, 0.0) for name, used in after.cpu_s.items()},
    )


def _tell(spent: _Spent, idle: _Spent, calls: int) -> None:
    """Say what one call took, of what was used while nothing else but `idle` went on."""
    _tell_commands(spent, idle, calls)
    share = spent.seconds / idle.seconds
    for name, used in spent.cpu_s.items():
        own = (used - idle.cpu_s.get(name, 0.0) * share) / calls
        _say(f"  {name}: {1000 * own:.3f} ms of a processor a call")


def _tell_commands(spent: _Spent, idle: _Spent, calls: int) -> None:
    share = spent.seconds / idle.seconds
    per = {name: (count - idle.commands[name] * share) / calls for name, count in spent.commands.items()}
    shown = {
        name: round(value, 2) for name, value in sorted(per.items(), key=lambda one: -one[1]) if value > 0.05
    }
    _say(f"  commands a call, those in scripts too: {sum(per.values()):.1f}: {shown}")
    _say(f"  commands sent by clients a call: {(spent.sent - idle.sent * share) / calls:.1f}")
    _say(f"  commands a second without calls: {sum(idle.commands.values()) / idle.seconds:.1f}")


def _s3() -> dict[str, str]:
    started = subprocess.run(
        [ROOT / "scripts/rgw", "start", "--with", str(os.getpid())], stdout=subprocess.PIPE, check=True
    )
    server: dict[str, str] = json.loads(started.stdout)
    return server


def _of_s3(folder: Path, _options: argparse.Namespace) -> None:
    """Say how many requests of S3 a file takes on its way in and out."""
    server = _s3()
    store = S3Store(
        BucketAddress(
            bucket=_bucket(server),
            endpoint=server["endpoint"],
            path_style=True,
            access_key=SecretStr(server["access_key"]),
            secret_key=SecretStr(server["secret_key"]),
        )
    )
    seen: Counter[str] = Counter()
    for client in (store._bucket._client, store._bucket._quick):
        client.meta.events.register("before-send.s3", lambda request, **_: seen.update([request.method]))
    asyncio.run(_files(store, folder, seen))


async def _files(store: S3Store, folder: Path, seen: Counter[str]) -> None:
    scope = Scope(user_id="scale")
    rows = []
    await store.put_bytes(b"warm", Put(name="warm.txt"), scope=scope)
    for size in (32 << 10, _MIB, 32 * _MIB):
        path = folder / f"{size}.bin"
        path.write_bytes(secrets.token_bytes(size))
        seen.clear()
        begun = time.process_time()
        record = await store.put_file(path, Put(name=path.name), scope=scope)
        rows.append((f"put {size >> 10} KiB", str(dict(seen)), f"{1000 * (time.process_time() - begun):.1f}"))
        seen.clear()
        begun = time.process_time()
        async with store.open(record, scope=scope) as content:
            async for _ in content:
                pass
        rows.append((f"get {size >> 10} KiB", str(dict(seen)), f"{1000 * (time.process_time() - begun):.1f}"))
    seen.clear()
    listed = await store.list(scope=scope)
    rows.append((f"list {len(listed)} files", str(dict(seen)), ""))
    _say("S3\n" + table(("what", "requests", "processor ms"), rows))


def _bucket(server: Mapping[str, str]) -> str:
    name = f"scale-{secrets.token_hex(6)}"
    _client(server).create_bucket(Bucket=name)
    return name


def _client(server: Mapping[str, str]) -> Any:
    return boto3.session.Session().client(
        "s3",
        endpoint_url=server["endpoint"],
        region_name="us-east-1",
        aws_access_key_id=server["access_key"],
        aws_secret_access_key=server["secret_key"],
        config=Config(s3={"addressing_style": "path"}),
    )


def _made(folder: Path, name: str) -> Path:
    own = folder / name
    own.mkdir()
    return own


def _python(checkout: Path) -> Path:
    return Path(sys.executable) if checkout == ROOT else checkout / ".venv" / "bin" / "python"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


_PARTS: dict[str, Callable[[Path, argparse.Namespace], None]] = {
    "s3": _of_s3,
    "docket": _of_docket,
    "first": _of_first,
    "fleet": _of_fleet,
}


if __name__ == "__main__":
    main()
