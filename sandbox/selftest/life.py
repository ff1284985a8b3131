"""Signs of life: what an act leaves behind holds a lock in the home, so that the host sees whether it lives.

Source: flock(2): a lock belongs to the open file, which every descendant inherits.
"""

import fcntl
import os
import signal
import time

from sandbox.selftest.attempt import Surroundings

__all__ = ["live", "pulse", "ready", "stay", "wait_until_ready"]

_STAY_S, _START_S = 60, 5.0


def pulse(place: Surroundings) -> None:
    """Take the lock, and say so."""
    descriptor = os.open(f"{place.home}/pulse", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    # Should nobody end it, it ends itself.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_STAY_S)
    ready(place)


def ready(place: Surroundings) -> None:
    """End the wait of `wait_until_ready`."""
    os.close(os.open(f"{place.home}/ready", os.O_WRONLY | os.O_CREAT, 0o600))


def live() -> None:
    """Do nothing until the end."""
    while True:
        signal.pause()


def stay(place: Surroundings) -> None:
    """Take the lock, and live."""
    pulse(place)
    live()


def wait_until_ready(place: Surroundings) -> None:
    """Wait until a descendant has the lock, or clearly gets none."""
    deadline = time.monotonic() + _START_S
    while not os.path.exists(f"{place.home}/ready") and time.monotonic() < deadline:
        time.sleep(0.002)
