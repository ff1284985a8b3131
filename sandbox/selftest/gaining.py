"""Attempts to gain a right that shows only while whoever has it lives: the host looks during the act."""

import time
from collections.abc import Callable

from sandbox.selftest.attempt import Act, ActEvidence, Attempt, AttemptKind, AttemptNeed
from sandbox.selftest.world import World

__all__ = ["gain", "lasting"]

# Longer than the host takes to find out. On a machine that is busy all of its looks take longer, and so do
# these: they are counted, too, and the process has to be above the bound in each.
_LAST_S = 4.0
_LOOKS = 20


def gain(
    name: str, technique: str, act: Act, during: Callable[[World, int], bool], *needs: AttemptNeed
) -> Attempt:
    """Return an attempt of kind `tamper`: it got out if `during` says so of the process that holds still."""
    return Attempt(
        id=f"tamper-{name}",
        kind=AttemptKind.TAMPER,
        technique=technique,
        act=act,
        escaped=_held,
        during=during,
        needs=needs,
    )


def lasting(measure: Callable[[World, int], float], bound: float) -> Callable[[World, int], float]:
    """Return what measures whether a process stays above a bound that the host can only watch over.

    Args:
        measure: Says how much a process has.
        bound: What it must not have for long.
    """

    def during(world: World, pid: int) -> float:
        deadline, looks = time.monotonic() + _LAST_S, 0
        while (found := measure(world, pid)) > bound and (time.monotonic() < deadline or looks < _LOOKS):
            looks += 1
            time.sleep(0.05)
        return found

    return during


def _held(_world: World, seen: ActEvidence) -> bool:
    return seen.during is True
