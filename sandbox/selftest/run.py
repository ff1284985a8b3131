"""A run: every attempt tried, a few at a time, and what came of all of them."""

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
    """Result of a run.

    Attributes:
        trials: One for each attempt and mode, in the order of the attempts.
        elapsed_s: How long all of it took.
    """

    trials: tuple[Trial, ...]
    elapsed_s: float

    def of(self, verdict: TrialVerdict) -> tuple[Trial, ...]:
        """Return the trials that ended so."""
        return tuple(trial for trial in self.trials if trial.verdict is verdict)

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Modes of keeping workers, in the order of the run."""
        return tuple(mode for mode in Mode if any(trial.mode is mode for trial in self.trials))

    def in_mode(self, mode: Mode) -> "SelftestReport":
        """Return what came of the attempts with workers kept so."""
        return replace(self, trials=tuple(trial for trial in self.trials if trial.mode is mode))

    @property
    def counted(self) -> tuple[Trial, ...]:
        """The trials that prove something: their attempt gets out of an unconfined process."""
        return tuple(t for t in self.trials if t.verdict in (TrialVerdict.HELD, TrialVerdict.GOT_OUT))

    @property
    def kinds(self) -> tuple[AttemptKind, ...]:
        """The kinds of what was counted."""
        return tuple(kind for kind in AttemptKind if any(t.attempt.kind is kind for t in self.counted))

    @property
    def held(self) -> bool:
        """True if nothing got out that should not."""
        return not self.of(TrialVerdict.GOT_OUT)


async def run(
    attempts: Sequence[Attempt], setup: Setup, *, tell: Callable[[Trial], None] = lambda _trial: None
) -> SelftestReport:
    """Try every attempt, each in a worker of its own, once in each mode of the setup.

    Args:
        attempts: What to try.
        setup: What to try it against.
        tell: Called with each trial as it ends.

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
