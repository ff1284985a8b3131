"""Attempts to gain a right that shows only while whoever has it lives: the host looks during the act."""

from collections.abc import Callable

from sandbox.selftest.attempt import Act, Attempt, Kind, Need, Seen
from sandbox.selftest.world import World

__all__ = ["gain"]


def gain(name: str, technique: str, act: Act, during: Callable[[World, int], bool], *needs: Need) -> Attempt:
    """Return an attempt of kind `tamper`: it got out if `during` says so of the process that holds still."""
    return Attempt(
        id=f"tamper-{name}",
        kind=Kind.TAMPER,
        technique=technique,
        act=act,
        escaped=_held,
        during=during,
        needs=needs,
    )


def _held(_world: World, seen: Seen) -> bool:
    return seen.during is True
