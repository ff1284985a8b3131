"""Reaping of children, one of which may not be reaped yet."""

import os

import pytest
from forked import Report, run_in_child

from sandbox.inside.reaper import Reaper

pytestmark = pytest.mark.kernel


def child_with_status(status: int) -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(status)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid


def test_zombie_that_is_held_does_not_delay_others() -> None:
    def reaped() -> object:
        reaper = Reaper()
        held = child_with_status(1)
        others = {child_with_status(2), child_with_status(3)}
        first = dict(reaper.reap(lambda pid: pid != held, among=[held, *others]))
        was_held, second = reaper.holds, dict(reaper.reap(among=[held]))
        return [first.keys() == others, was_held, second.keys() == {held}, reaper.holds]

    assert run_in_child(reaped, lambda: None) == Report(value=[True, True, True, False])
