"""What processes cost: `runner call` from start to end, memory of idle workers, the machine's other work."""

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from benchmarks.servers import ROOT, environment

__all__ = ["Neighbours", "command_seconds", "memory_mib"]

_MIB = 1 << 20
_HELLO = ["sample_tools/hello.py", "shout", "text=hi"]


def command_seconds(folder: Path, *, times: int) -> list[float]:
    """Return the seconds that each of `times` runs of `runner call` took, from exec to exit.

    Raises:
        RuntimeError: A run failed; the message is its own.
    """
    taken: list[float] = []
    for _ in range(times + 1):
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "runner.cli", "call", *_HELLO],
            cwd=ROOT,
            env=environment(folder),
            capture_output=True,
            text=True,
            check=False,
        )
        taken.append(time.perf_counter() - started)
        if done.returncode != 0 or "HI" not in done.stdout:
            raise RuntimeError(f"runner call ended with {done.returncode}:\n{done.stderr[-2000:]}")
    # The first run fills the file cache.
    return taken[1:]


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


class Neighbours:
    """The share of this machine's processor time that went to none of our processes."""

    def __init__(self) -> None:
        self._before = self._seconds()

    def share(self) -> float:
        """Return the share since this value was made, 0 to 1; figures of a busy machine are worth little."""
        busy, ours, total = (now - then for now, then in zip(self._seconds(), self._before, strict=True))
        return max(0.0, busy - ours) / total if total else 0.0

    @staticmethod
    def _seconds() -> tuple[float, float, float]:
        all_times = psutil.cpu_times()
        total = sum(all_times) - all_times.guest - all_times.guest_nice
        busy = total - all_times.idle - all_times.iowait
        ours = 0.0
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            # A worker that has been reaped counts among its zygote's children.
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                ours += times.user + times.system + times.children_user + times.children_system
        return busy, ours, total
