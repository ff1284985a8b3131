"""What processes cost: `runner call` from start to end, and the memory of idle workers."""

import subprocess
import sys
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from benchmarks.servers import ROOT, environment

__all__ = ["command_seconds", "memory_mib"]

_MIB = 1 << 20
_HELLO = ["sample_tools/hello.py", "shout", "text=hi"]


def command_seconds(folder: Path) -> float:
    """Return the seconds that one run of `runner call` takes, from exec to exit.

    Raises:
        RuntimeError: The run failed; the message is its own.
    """
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "runner", "call", *_HELLO],
        cwd=ROOT,
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    taken = time.perf_counter() - started
    if done.returncode != 0 or "HI" not in done.stdout:
        raise RuntimeError(f"runner call ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return taken


def memory_mib(host: int) -> dict[str, list[float]]:
    """Return the unique memory (USS), in MiB, of the processes below a host, by their part.

    A host has one forkserver, whose children are zygotes, whose children are workers.
    """
    generation = [psutil.Process(host)]
    found: dict[str, list[float]] = {}
    for part in ("host", "forkserver", "zygote", "worker"):
        found[part] = [process.memory_full_info().uss / _MIB for process in generation]
        generation = [child for process in generation for child in process.children()]
    if not found["worker"]:
        raise RuntimeError(f"the host {host} has no parked worker to measure")
    return found
