"""Descendants of this process, as the kernel lists them: forkservers, zygotes, workers."""

import os
from pathlib import Path

__all__ = ["children", "descendants", "forkservers", "zygotes"]


def children(pid: int) -> list[int]:
    """Return the children of a process, for each of its threads in order of age."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        lists = [Path(f"/proc/{pid}/task/{thread}/children").read_text().split() for thread in threads]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(child) for found in lists for child in found]


def descendants(pid: int) -> list[int]:
    """Return all descendants of a process."""
    below = children(pid)
    return below + [found for child in below for found in descendants(child)]


def forkservers() -> list[int]:
    """Return the running forkservers of this process, newest first."""
    found = {pid: started for pid in children(os.getpid()) if (started := _forkserver_since(pid)) is not None}
    return sorted(found, key=lambda pid: (found[pid], pid), reverse=True)


def zygotes() -> list[int]:
    """Return the zygotes of the newest forkserver."""
    return [child for newest in forkservers()[:1] for child in children(newest)]


def _forkserver_since(pid: int) -> int | None:
    """Return the start time of a forkserver in clock ticks; None for a zombie or any other process.

    Source: linux fs/exec.c: a parent may run on before the arguments of its child are set.
    """
    command = b""
    while not command:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            name, _, facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            return None
        state, *numbers = facts.split()
        if state in "ZX":
            return None
    is_one = b"sandbox.inside.forkserver_main" in command or name.endswith("(forkserver")
    return int(numbers[18]) if is_one else None
