"""The task of a server that sweeps its store: at its start, and then now and again.

A store of this machine is swept every five minutes. Sweeping one in S3 lists all that is in it, for every
host that shares it, so there it is once an hour, at a time of each host's own. Nothing hangs on it: what
has ended is not found any more, swept or not.
"""

import asyncio
import itertools
import logging
import random
from collections.abc import Callable, Iterator

from runner.errors import CallError
from runner.store.protocol import ArtifactStore
from runner.store.spool import SpoolingStore

__all__ = ["pauses", "sweep_now_and_then"]

_LOCAL_S = 300.0
_SHARED_S = 3600.0

_log = logging.getLogger(__name__)


def pauses(*, shared: bool, chance: Callable[[], float] = random.random) -> Iterator[float]:
    """Yield the seconds to wait before each sweep.

    Args:
        shared: Whether other hosts sweep the same store.
        chance: From 0 to 1, so that hosts which started together do not sweep together.
    """
    if not shared:
        yield 0.0
        yield from itertools.repeat(_LOCAL_S)
    yield _LOCAL_S * chance()
    while True:
        yield _SHARED_S * (0.5 + chance())


async def sweep_now_and_then(store: ArtifactStore) -> None:
    """Sweep a store until cancelled; it logs what it removes."""
    for pause_s in pauses(shared=isinstance(store, SpoolingStore)):
        await asyncio.sleep(pause_s)
        try:
            await store.sweep()
        except CallError as error:
            _log.warning("store not swept", extra={"reason": error.message})
