"""What keeping a large file in S3 costs: our upload beside `boto3.upload_file`, and the memory of the host.

Both send the same file to the same server in turn, in processes of their own, and each goes first in every
other round. The server is Ceph RGW on this machine, started by `scripts/rgw`; it takes part of the
processors from both alike. The first upload, into memory that the server never used, does not count.

usage: scripts/bench --store [--mib N] [--rounds N]
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import psutil
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from pydantic import SecretStr

from runner.store.protocol import Put, Scope
from runner.store.s3.bucket import BucketAddress
from runner.store.s3.store import S3Store

__all__ = ["main"]

RATIO_LIMIT = 0.9
MEMORY_LIMIT_MIB = 64.0
MIB = 1024 * 1024
_ROOT = Path(__file__).resolve().parents[1]
_SCOPE = Scope(user_id="bench")
_GC_S = 12.0

Server = Mapping[str, str]


def main() -> None:
    """Run the benchmark and print its report."""
    parser = argparse.ArgumentParser(prog="scripts/bench --store", description="Compare uploads to S3.")
    parser.add_argument("--mib", type=int, default=2048, help="size of the file (2048)")
    parser.add_argument("--rounds", type=int, default=3, help="uploads of each kind (3)")
    options = parser.parse_args()
    started = subprocess.run(
        [_ROOT / "scripts/rgw", "start", "--with", str(os.getpid())], stdout=subprocess.PIPE, check=True
    )
    server = json.loads(started.stdout)
    with tempfile.TemporaryDirectory(prefix="toolcell-bench-") as folder:
        path = Path(folder) / "large.bin"
        _fill(path, options.mib)
        kinds = {"ours": partial(_ours, server, path), "boto3": partial(_theirs, server, path)}
        _apart(kinds["boto3"])
        costs: dict[str, list[_Cost]] = {name: [] for name in kinds}
        for number in range(options.rounds):
            for name in list(kinds)[:: -1 if number % 2 else 1]:
                costs[name].append(_apart(kinds[name]))
    _say(f"file of {options.mib} MiB, {options.rounds} rounds each, load {os.getloadavg()[0]:.1f} at the end")
    _report(options.mib, costs["ours"], costs["boto3"])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    """What one upload cost this side: time, processor time, and by how much memory grew at most."""

    seconds: float
    cpu_s: float
    grown_mib: float


def _report(mib: int, ours: list[_Cost], theirs: list[_Cost]) -> None:
    for name, costs in (("ours", ours), ("boto3.upload_file", theirs)):
        seconds, cpu = [c.seconds for c in costs], [c.cpu_s for c in costs]
        _say(
            f"{name}: {_spread(seconds)} s, {mib / statistics.median(seconds):.0f} MiB/s; processor "
            f"{_spread(cpu)} s; memory +{max(c.grown_mib for c in costs):.0f} MiB"
        )
    pairs = [their.seconds / our.seconds for our, their in zip(ours, theirs, strict=True)]
    ratio, most = statistics.median(pairs), max(cost.grown_mib for cost in ours)
    _say(_judged(f"ratio of neighbours {_spread(pairs)}, wanted {RATIO_LIMIT}", good=ratio >= RATIO_LIMIT))
    memory = f"memory of the host grew by {most:.0f} MiB, wanted under {MEMORY_LIMIT_MIB:.0f}"
    _say(_judged(memory, good=most < MEMORY_LIMIT_MIB))


def _apart(work: Callable[[], _Cost]) -> _Cost:
    """Run in a fresh process; then give the server time to let the deleted bytes go."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        result = pool.apply(work)
    time.sleep(_GC_S)
    return result


def _ours(server: Server, path: Path) -> _Cost:
    store = S3Store(
        BucketAddress(
            bucket=_bucket(server),
            endpoint=server["endpoint"],
            path_style=True,
            access_key=SecretStr(server["access_key"]),
            secret_key=SecretStr(server["secret_key"]),
        )
    )

    async def send() -> _Cost:
        small = await store.put_bytes(b"warm", Put(name="warm.txt"), scope=_SCOPE)
        with _Measured() as measured:
            record = await store.put_file(path, Put(name="large.bin"), scope=_SCOPE)
        for each in (small, record):
            await store.delete(each.id, scope=_SCOPE)
        return measured.cost

    return asyncio.run(send())


def _theirs(server: Server, path: Path) -> _Cost:
    client = _client(server)
    bucket = _bucket(server)
    with _Measured() as measured:
        classic = TransferConfig(preferred_transfer_client="classic")
        client.upload_file(str(path), bucket, "large.bin", Config=classic)
    client.delete_object(Bucket=bucket, Key="large.bin")
    return measured.cost


def _bucket(server: Server) -> str:
    name = f"bench-{secrets.token_hex(6)}"
    _client(server).create_bucket(Bucket=name)
    return name


def _client(server: Server) -> Any:
    return boto3.session.Session().client(
        "s3",
        endpoint_url=server["endpoint"],
        region_name="us-east-1",
        aws_access_key_id=server["access_key"],
        aws_secret_access_key=server["secret_key"],
        config=Config(s3={"addressing_style": "path"}),
    )


class _Measured:
    """Measures what is done inside, the memory of this process fifty times a second."""

    cost: _Cost

    def __enter__(self) -> "_Measured":
        self._process = psutil.Process()
        self._before = self._most = self._process.memory_info().rss
        self._done = threading.Event()
        self._watch = threading.Thread(target=self._look)
        self._watch.start()
        self._began, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        seconds, cpu_s = time.perf_counter() - self._began, time.process_time() - self._cpu
        self._done.set()
        self._watch.join()
        self.cost = _Cost(seconds=seconds, cpu_s=cpu_s, grown_mib=(self._most - self._before) / MIB)

    def _look(self) -> None:
        while not self._done.wait(0.02):
            self._most = max(self._most, self._process.memory_info().rss)


def _fill(path: Path, mib: int) -> None:
    block = secrets.token_bytes(MIB)
    with path.open("wb") as file:
        for number in range(mib):
            file.write(number.to_bytes(8, "big") + block[8:])


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _judged(text: str, *, good: bool) -> str:
    return f"{'reached' if good else 'MISSED '}  {text}"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
