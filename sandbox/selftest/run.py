"""A run: every attempt tried, a few at a time, and the result of all of them."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sandbox.selftest.attempt import Attempt, AttemptKind
from sandbox.selftest.trial import Mode, Setup, Trial, TrialVerdict, bench

__all__ = ["SelftestReport", "run"]

_AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SelftestReport:
    """The result of a run.

    Attributes:
        trials: One for each attempt and mode, in the order of the attempts.
        elapsed_s: Its duration.
    """

    trials: tuple[Trial, ...]
    elapsed_s: float

    def of(self, verdict: TrialVerdict) -> tuple[Trial, ...]:
        """Return the trials that ended so."""
        return tuple(trial for trial in self.trials if trial.verdict is verdict)

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Return the modes of workers, in the order in which they were tried."""
        return tuple(mode for mode in Mode if any(trial.mode is mode for trial in self.trials))

    def in_mode(self, mode: Mode) -> "SelftestReport":
        """Return the result of the attempts in one mode."""
        return replace(self, trials=tuple(trial for trial in self.trials if trial.mode is mode))

    @property
    def counted(self) -> tuple[Trial, ...]:
        """Return the trials that prove something: their attempt gets out of an unconfined process."""
        return tuple(t for t in self.trials if t.verdict in (TrialVerdict.HELD, TrialVerdict.GOT_OUT))

    @property
    def kinds(self) -> tuple[AttemptKind, ...]:
        """Return the kinds of the trials that were counted."""
        return tuple(kind for kind in AttemptKind if any(t.attempt.kind is kind for t in self.counted))

    @property
    def held(self) -> bool:
        """Return whether nothing got out that should not."""
        return not self.of(TrialVerdict.GOT_OUT)


async def run(
    attempts: Sequence[Attempt], setup: Setup, *, tell: Callable[[Trial], None] = lambda _trial: None
) -> SelftestReport:
    """Try every attempt, each in a worker of its own, once in each mode of the setup.

    Args:
        attempts: The attempts.
        setup: The sandbox that they are made against.
        tell: Takes each trial as it ends.

    Raises:
        SandboxError: No worker could be had.
    """
    started = time.monotonic()
    places = asyncio.Semaphore(_AT_ONCE)
    async with bench(setup) as at:

        async def one(attempt: Attempt) -> list[Trial]:
            async with places:
                tried = await at.trials(attempt)
            for trial in tried:
                tell(trial)
            return tried

        trials = await _all([asyncio.create_task(one(attempt)) for attempt in attempts])
    return SelftestReport(trials=trials, elapsed_s=time.monotonic() - started)


async def _all(tasks: "Sequence[asyncio.Task[list[Trial]]]") -> tuple[Trial, ...]:
    """Wait for all; when one fails, the others are stopped and its error goes on as it is."""
    try:
        return tuple(trial for tried in await asyncio.gather(*tasks) for trial in tried)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
