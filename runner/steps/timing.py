"""Durations of the steps of a call, for its report.

Source: `docs/widgets.md`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runner.store.protocol import Record
from sandbox.outcome import Outcome

if TYPE_CHECKING:
    # The SDK of OpenTelemetry comes with it.
    from runner.observation.spans import CallSpan

__all__ = ["REPORT", "Steps", "wants_report"]

REPORT = "toolcell/report"
"""Key of `_meta` by which a request asks for a report, and under which the result carries it."""


@dataclass(slots=True)
class Steps:
    """A stopwatch with a name for each lap, and reports of the sandbox.

    Attributes:
        outcome: How the worker ended, once it did.
        is_fresh: Whether the worker had served no call before.
        goes_on: Whether what it has begun goes on between calls, where the tool asks for that or it is so.
        inputs: The user's files that the tool was given.
        generated: What was kept of files that the tool wrote and did not return.
        trace: The call's span, as a `traceparent`, where spans are made.
        span: The call's span for OpenTelemetry, where spans are made.
        begin: Writes its first line to the audit log, if there is one; returns the digest of its arguments.
        laps: When each step was done, in seconds since the first began; one that came twice, twice.
        approval: The approval that it needed, in words of the audit log.
    """

    outcome: Outcome | None = None
    is_fresh: bool = True
    goes_on: bool | None = None
    inputs: Sequence[Record] = ()
    generated: list[Record] = field(default_factory=list)
    trace: str | None = None
    span: "CallSpan | None" = None
    begin: Callable[[], str] | None = None
    laps: list[tuple[str, float]] = field(default_factory=list)
    approval: str | None = None
    _began: float = field(default_factory=time.perf_counter)

    def done(self, step: str) -> None:
        """Record the duration since the previous step."""
        self.laps.append((step, time.perf_counter() - self._began))

    def elapsed_s(self) -> float:
        """Return the seconds since the first step began."""
        return time.perf_counter() - self._began

    @property
    def elapsed_ms(self) -> float:
        """Return the milliseconds since the call began."""
        return round(self.elapsed_s() * 1000, 1)

    def in_ms(self) -> dict[str, float]:
        """Return the time of each step in milliseconds, in the order in which they came."""
        laps: dict[str, float] = {}
        before = 0.0
        for step, done in self.laps:
            laps[step] = laps.get(step, 0.0) + done - before
            before = done
        return {step: round(took * 1000, 3) for step, took in laps.items()}

    def spans(self) -> dict[str, Any]:
        """Return the call's span and those below it, for a report; nothing where spans are not made."""
        if self.trace is None:
            return {}
        below, before = [], 0.0
        for step, done in self.laps:
            below.append(
                {
                    "name": step,
                    "start_ms": round(before * 1000, 3),
                    "took_ms": round((done - before) * 1000, 3),
                }
            )
            before = done
        return {"trace": self.trace, "spans": below}


def wants_report(params: Mapping[str, object]) -> bool:
    """Return whether a request wants a timing report."""
    meta = params.get("_meta")
    return isinstance(meta, Mapping) and meta.get(REPORT) is True
