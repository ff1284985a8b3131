"""A fleet under soak, all of it on this machine: Redis, an S3, hosts that are asked in turns, worker nodes.

S3 is Ceph RGW of `scripts/rgw`, which ends with this process; every other process ends with it, too.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3
import psutil
import redis

from benchmarks.servers import ROOT
from benchmarks.soak import TOOLS, UIDS, address_of, forkserver_of
from benchmarks.soak_calls import settings_text
from benchmarks.soak_traces import Traces, host_memory_mib
from sandbox.syscalls import PR_SET_PDEATHSIG, prctl

__all__ = ["Fleet", "fleet_serving"]

_MIB = 1 << 20
_START_S = 300.0
# Leases of places hold for 10 s, and hosts and nodes have some to say at their end.
_PLACES_S = 30.0
_STOP_S = 60.0
_MAX_CALLS = 64
_KEPT_FOR_EVER = frozenset({"rounds"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """A host or a node: its process, its folder, and the user ids that it gives to users."""

    name: str
    process: "subprocess.Popen[bytes]"
    folder: Path
    uids: range

    @property
    def said(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A fleet under soak.

    Attributes:
        hosts: The hosts.
        nodes: The worker nodes.
        urls: Where the hosts have MCP.
        tokens: The users, by their tokens.
        others: Process ids of what is no part of it, though it lives below this process.
    """

    hosts: list[_Machine]
    nodes: list[_Machine]
    urls: list[str]
    tokens: Mapping[str, str]
    others: frozenset[int]
    _redis: "redis.Redis"

    def memory_mib(self) -> dict[str, float]:
        """Return the memory that each process alone has, and what Redis says of its own."""
        machines = {one.name: host_memory_mib(one.process.pid) for one in (*self.hosts, *self.nodes)}
        return {**machines, "redis": int(self._redis.info("memory")["used_memory"]) / _MIB}

    def alive(self) -> list[str]:
        """Return a line for each host or node that has ended by itself."""
        ended = [one for one in (*self.hosts, *self.nodes) if one.process.poll() is not None]
        return [f"{one.name} has ended by itself: {one.said[-300:]}" for one in ended]

    def places(self) -> list[str]:
        """Return a line for each place that is still taken, though no call is under way, after a while."""
        ends = time.monotonic() + _PLACES_S
        while (taken := self._taken()) and time.monotonic() < ends:
            time.sleep(0.1)
        return taken

    def stop(self, *, token: str, key: int) -> list[str]:
        """End it as its operator would; return a line for everything that is left."""
        traces = [
            Traces(
                forkserver=forkserver_of(one.process.pid), uids=one.uids, folder=one.folder, token=token,
                key=key, others=self.others,
            )
            for one in (*self.hosts, *self.nodes)
        ]  # fmt: skip
        for one in (*self.hosts, *self.nodes):
            one.stop()
        keys = [f"key {name} of Redis without an end" for name in self._keys_without_end()]
        return [*keys, *dict.fromkeys(line for one in traces for line in one.left())]

    def logged(self) -> list[str]:
        """Return what hosts and nodes have logged, without what each says as it starts."""
        return [
            f"{one.name}: {line}" for one in (*self.hosts, *self.nodes) for line in one.said.splitlines()[1:]
        ]

    def _taken(self) -> list[str]:
        names = [name for kind in ("running", "load", "call") for name in self._names(f"*:{kind}:*")]
        return [f"place {name} is taken" for name in names]

    def _keys_without_end(self) -> list[str]:
        names = [name for name in self._names("*") if self._redis.ttl(name) == -1]
        return [name for name in names if name.partition(":")[2] not in _KEPT_FOR_EVER]

    def _names(self, pattern: str) -> list[str]:
        return [key.decode() if isinstance(key, bytes) else key for key in self._redis.keys(pattern)]


@contextmanager
def fleet_serving(isolation: str, *, users: int, hosts: int, nodes: int) -> Iterator[Fleet]:
    """Have hosts and nodes serve the tools until the block ends; remove all that belongs to them then.

    Args:
        isolation: The tier, as for runner serve.
        users: How many users there are.
        hosts: How many hosts.
        nodes: How many worker nodes.
    """
    folder = Path(tempfile.mkdtemp(prefix="toolcell-soak-", dir="/var/tmp"))
    folder.chmod(0o755)
    tokens = {secrets.token_urlsafe(24): f"user-{number}" for number in range(users)}
    with contextlib.ExitStack() as ends:
        ends.callback(shutil.rmtree, folder, ignore_errors=True)
        port, settings = _redis_in(folder, ends), _common(folder, isolation, tokens)
        settings |= {**_bucket(), "RUNNER_REDIS_URL": f"redis://127.0.0.1:{port}/0"}
        others = frozenset(child.pid for child in psutil.Process().children(recursive=True))
        node_list = [_started(folder, f"node{one}", one, ["worker"], settings, ends) for one in range(nodes)]
        serve = ["serve", "--transport", "http"]
        host_list = [
            _started(folder, f"host{one}", nodes + one, serve, settings, ends) for one in range(hosts)
        ]
        for node in node_list:
            _wait_for(node, "worker node ")
        urls = [address_of(host.process, host.folder / "log", within_s=_START_S) for host in host_list]
        yield Fleet(
            hosts=host_list, nodes=node_list, urls=urls, tokens=tokens, others=others,
            _redis=redis.Redis(port=port),
        )  # fmt: skip


def _begin() -> None:
    # Whoever kills the soak has not got a fleet in mind that runs on.
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _redis_in(folder: Path, ends: contextlib.ExitStack) -> int:
    program = shutil.which("redis-server")
    if program is None:
        sys.exit("redis-server is missing: scripts/setup installs it")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
    process = subprocess.Popen(
        [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes",
         "--dir", str(folder), "--maxmemory-policy", "noeviction"],
        stdout=subprocess.DEVNULL,
        preexec_fn=_begin,
    )  # fmt: skip
    ends.callback(process.wait)
    ends.callback(process.terminate)
    until = time.monotonic() + _START_S
    while True:
        try:
            redis.Redis(port=port).ping()
        except redis.exceptions.RedisError:
            if time.monotonic() > until or process.poll() is not None:
                sys.exit("redis-server did not start")
            time.sleep(0.05)
        else:
            return port


def _bucket() -> dict[str, str]:
    """Return the settings of a new bucket."""
    started = subprocess.run(
        [ROOT / "scripts/rgw", "start", "--with", str(os.getpid())], stdout=subprocess.PIPE, check=True
    )
    s3 = json.loads(started.stdout)
    bucket = f"soak-{secrets.token_hex(6)}"
    keys = {"aws_access_key_id": s3["access_key"], "aws_secret_access_key": s3["secret_key"]}
    client = boto3.client("s3", endpoint_url=s3["endpoint"], region_name="us-east-1", **keys)
    client.create_bucket(Bucket=bucket)
    return {
        "RUNNER_STORE": f"s3://{bucket}/soak",
        "RUNNER_S3_ENDPOINT": s3["endpoint"],
        "RUNNER_S3_REGION": "us-east-1",
        "RUNNER_S3_ACCESS_KEY": s3["access_key"],
        "RUNNER_S3_SECRET_KEY": s3["secret_key"],
    }


def _common(folder: Path, isolation: str, tokens: Mapping[str, str]) -> dict[str, str]:
    """Write what all machines have; return the variables that say where it is."""
    for name, text in (("tokens.json", json.dumps(tokens)), ("fleet.key", secrets.token_hex(32))):
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    (folder / "runner.toml").write_text(f"""
engine = "docket"
isolation = "{isolation}"
port = 0
user_processes = 200
playground = false
log_level = "error"

[auth]
kind = "static"
tokens_file = "{folder}/tokens.json"

{settings_text()}""")
    return {
        "RUNNER_CONFIG": str(folder / "runner.toml"),
        "RUNNER_FLEET_KEY_FILE": str(folder / "fleet.key"),
    }


def _started(
    folder: Path,
    name: str,
    number: int,
    command: list[str],
    settings: Mapping[str, str],
    ends: contextlib.ExitStack,
) -> _Machine:
    own = folder / name
    (own / "homes").mkdir(parents=True)
    own.chmod(0o755)
    # One machine here, and many there: what they give to users must not be the same.
    uids = range(UIDS[0] + number * len(UIDS), UIDS[0] + (number + 1) * len(UIDS))
    usual = {name: value for name, value in os.environ.items() if not name.startswith("RUNNER_")}
    variables = {
        "RUNNER_HOMES": str(own / "homes"),
        "RUNNER_STATE_DIR": str(own / "state"),
        "RUNNER_UID_RANGE": f"{uids[0]}-{uids[-1]}",
        # Of a host it is that of the whole fleet.
        **({"RUNNER_MAX_CALLS": str(_MAX_CALLS)} if command[0] == "serve" else {}),
    }
    config = ["--config", settings["RUNNER_CONFIG"]]
    given = {name: value for name, value in settings.items() if name != "RUNNER_CONFIG"}
    with (own / "log").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "runner", command[0], str(TOOLS), *command[1:], *config],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            cwd=ROOT,
            preexec_fn=_begin,
            env={**usual, **given, **variables},
        )
    ends.callback(process.wait)
    ends.callback(process.kill)
    return _Machine(name=name, process=process, folder=own, uids=uids)


def _wait_for(node: _Machine, word: str) -> None:
    until = time.monotonic() + _START_S
    while word not in node.said:
        if node.process.poll() is not None or time.monotonic() > until:
            sys.exit(f"{node.name} did not start:\n{node.said[-3000:]}")
        time.sleep(0.05)
