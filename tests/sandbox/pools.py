"""A forkserver of a test program, a pool of its workers, and a listener who keeps what it hears."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from support import becomes

from sandbox.deadlines import Deadlines, Rung
from sandbox.host.forkserver import Forkserver
from sandbox.host.pool import IdleWorkers, Pool, ZygoteSource
from sandbox.host.retirement import Reuse
from sandbox.outcome import Outcome
from sandbox.policy import Limits, Policy
from sandbox.readable import default_read

__all__ = [
    "ENVIRONMENT",
    "STAYS",
    "TESTS",
    "Ears",
    "forkserver_of",
    "homeless_pool_of",
    "parks",
    "pool_of",
    "reusing_pool_of",
    "run",
]

TESTS = Path(__file__).parents[1]
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(TESTS)}
STAYS = Reuse(calls=1000)


@dataclass
class Ears:
    """A listener that keeps what it hears.

    Attributes:
        notes: What it was told.
        rungs: Which rungs silence has reached.
        answer: Its answer to each request.
        waits: Whether its requests wait for a person.
        delay_s: How long an answer takes, in seconds; infinity for one that never comes.
        takes_s: How long it takes to hear what it is told, in seconds.
        called: Set when it receives a notice or a question.
    """

    notes: list[Mapping[str, object]] = field(default_factory=list)
    rungs: list[Rung] = field(default_factory=list)
    answer: Mapping[str, object] = field(default_factory=dict)
    waits: bool = False
    delay_s: float = 0
    takes_s: float = 0
    called: asyncio.Event = field(default_factory=asyncio.Event)

    async def notify(self, value: Mapping[str, object]) -> None:
        """Record a notification."""
        self.called.set()
        await asyncio.sleep(self.takes_s)
        self.notes.append(value)

    async def request(self, value: Mapping[str, object]) -> Mapping[str, object]:
        """Answer a request."""
        self.called.set()
        await asyncio.sleep(self.delay_s)
        return self.answer

    def waits_for_client(self, value: Mapping[str, object]) -> bool:
        """Return whether a request waits for a person."""
        return self.waits

    async def rung(self, rung: Rung) -> None:
        """Record a rung."""
        self.rungs.append(rung)


@asynccontextmanager
async def forkserver_of(program: str) -> AsyncIterator[Forkserver]:
    """Run a forkserver of a program in `tests/programs`."""
    server = await Forkserver.start(f"programs.{program}", environment=ENVIRONMENT)
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def pool_of(
    source: ZygoteSource,
    folder: Path,
    *,
    with_home: bool = True,
    load_timeout_s: float = 120,
    limits: Limits | None = None,
    net: tuple[str, ...] = (),
    reach: tuple[tuple[str, int], ...] = (),
    guard: bool = True,
    idle_workers: IdleWorkers | None = None,
    reuse: Reuse | None = None,
    **config: object,
) -> AsyncIterator[Pool]:
    """Run a pool of workers until the block ends, and wait until all of them are gone.

    Args:
        source: Who forks its zygote.
        folder: Where its home and its scratch folder are made.
        with_home: Whether its workers have a home.
        load_timeout_s: How long the program may take to load, in seconds.
        limits: The limits of its calls.
        net: Where its workers may connect to.
        reach: What they may reach without asking.
        guard: Whether denials are explained.
        idle_workers: How many are parked; one if nothing is said.
        reuse: How long they stay; for one call if nothing is said.
        config: What the program is told.
    """
    home, scratch = folder / "home", folder / "scratch"
    if with_home:
        home.mkdir(exist_ok=True)
    scratch.mkdir(exist_ok=True)
    # The forkserver has imported the program; beside it are those of all tests.
    found = default_read(deny=(), beside=[TESTS / "programs" / "small.py"], extra=(TESTS,))
    policy = Policy(
        home=home if with_home else None,
        scratch=scratch,
        read=found.read,
        list_only=found.list_only,
        names=found.names,
        environment={"PATH": os.environ["PATH"], "ONLY": "this"},
        limits=limits or Limits(),
        net=net,
        reach=reach,
        guard=guard,
    )
    home_fd = os.open(home, os.O_PATH | os.O_DIRECTORY) if with_home else None
    try:
        pool = await Pool.start(
            source,
            policy,
            config,
            home_fd=home_fd,
            load_timeout_s=load_timeout_s,
            idle_workers=idle_workers or IdleWorkers(least=1, most=1),
            reuse=reuse or Reuse(),
        )
        try:
            yield pool
        finally:
            pool.close()
            await pool.zygote.settled()
    finally:
        if home_fd is not None:
            os.close(home_fd)


reusing_pool_of = partial(pool_of, reuse=STAYS)
"""A pool whose workers stay."""

homeless_pool_of = partial(pool_of, with_home=False)
"""A pool whose workers have no home."""


async def run(pool: Pool, act: str, *args: object, ears: Ears | None = None, **limits: float) -> Outcome:
    """Run a call in a worker of its own, wait until it is gone, and refill the pool."""
    lease = await pool.lease(pool.policy.limits)
    deadlines = Deadlines(**{"idle_s": 120.0, "total_s": 180.0, **limits})
    outcome = await lease.run({"act": act, "args": list(args)}, deadlines=deadlines, listener=ears or Ears())
    await lease.at_rest()
    pool.refill()
    return outcome


async def parks(pool: Pool, count: int) -> None:
    """Wait until so many workers are parked, and none is on its way."""
    assert await becomes(lambda: (pool.zygote.at_hand, pool.zygote.idle) == (count, count))
