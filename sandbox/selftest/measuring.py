"""Oracles and measurements, from /proc, of a process that waits after its act."""

import math
import os
import time
from collections.abc import Callable
from pathlib import Path

from sandbox.selftest.attempt import Judge, Look
from sandbox.selftest.world import World

__all__ = ["above", "amount", "family", "found_by", "has", "lasting", "limit", "links"]

# Longer than the host takes to detect it. On a busy machine the host's looks take longer, and so do these:
# so a minimum number of looks is required too, and the process must be above the bound in each.
_LAST_S = 4.0
_LOOKS = 20


def found_by(look: Look) -> Judge:
    """Return a judge: the host's look during the act had a finding."""
    return lambda _world, seen: seen.during is True, look


def above(bound: float, look: Look) -> Judge:
    """Return a judge: the host measured more than a bound during the act."""
    return lambda _world, seen: isinstance(seen.during, int | float) and seen.during > bound, look


def lasting(bound: float, measure: Callable[[World, int], float]) -> Judge:
    """Return a judge: the host repeatedly measured more than a bound that it watches."""

    def during(world: World, pid: int) -> float:
        deadline, looks = time.monotonic() + _LAST_S, 0
        while (had := measure(world, pid)) > bound and (time.monotonic() < deadline or looks < _LOOKS):
            looks += 1
            time.sleep(0.05)
        return had

    return above(bound, during)


def amount(pid: int, file: str, name: str) -> int:
    """Return an amount of memory in bytes, by its line in a file of /proc about a process; 0 without one."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except ProcessLookupError:
        # A zombie: it uses nothing any more, but the others may still use too much.
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


def limit(name: str, pid: int) -> float:
    """Return a soft limit of a process, without the privilege that prlimit(2) needs for another user's."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    soft = next(line for line in lines if line.startswith(name))[len(name) :].split()[0]
    return math.inf if soft == "unlimited" else float(soft)


def family(pid: int) -> list[int]:
    """List a process and its descendants."""
    below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in below for each in family(int(child)))]


def links(pid: int) -> dict[int, str]:
    """Return the open descriptors of a process, and the kernel's name for what each refers to."""
    folder = f"/proc/{pid}/fd"
    return {int(name): os.readlink(f"{folder}/{name}") for name in os.listdir(folder)}


def has(kind: str) -> Callable[[World, int], bool]:
    """Return a look that searches a descriptor of a kind, by the kernel's name for it."""
    return lambda _world, pid: any(kind in link for link in links(pid).values())
