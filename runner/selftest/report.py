"""`runner selftest`: escape attempts on this machine, and their report.

Source: `docs/isolation.md`.
"""

import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree as Xml

from runner.errors import UsageError
from runner.formats.terminal_text import json_text
from runner.selftest.program import EVERY
from runner.settings.execution import ExecutionSettings
from runner.settings.sources import load
from runner.system.terminal import draw
from sandbox.inside.confine import LAYERS
from sandbox.probe.machine import TRIAL_UID, Tier
from sandbox.selftest.attempt import Attempt, AttemptKind, Blind
from sandbox.selftest.trial import Mode, SelftestReport, Setup, Trial, TrialVerdict, run

__all__ = ["Against", "SelftestOptions", "selftest_from_shell", "settings_to_attack"]

Against = Literal["sandbox", "monkeypatch"]
"""Target of the attempts: the whole sandbox, or the Python patches alone."""

_PROGRAM = "runner.selftest.program"
# Unused here, and a user without a home folder has no defaults for them.
_NOWHERE: dict[str, object] = {"state_dir": Path("/"), "store": "file:///"}
# Layers that are never left out: the host needs them to distinguish a worker from its zygote and to end it.
_KEPT = ("session",)
_MEANING = {
    Mode.USER: "in a worker that has served a call of its user before, was stopped and continued, and stays",
    Mode.CALL: "in a worker of its own, which ends with the call",
}
_ORDER = (TrialVerdict.GOT_OUT, TrialVerdict.LEFT_OPEN, TrialVerdict.NOT_PROVABLE, TrialVerdict.HELD)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelftestOptions:
    """The options of the command line."""

    kinds: Sequence[AttemptKind] = ()  # Kinds to try; all if empty.
    only: Sequence[str] = ()  # Attempts to try, by their ids; all if empty.
    against: Against = "sandbox"
    guard: bool = True  # Whether the Python patches are in place.
    tier: Tier = Tier.PROCESS  # The tier of the attempts.
    reuse: Mode | None = None  # Lifetime of workers; each in turn if None.
    uids: range = range(TRIAL_UID, TRIAL_UID + 1)  # User ids that the tier may assign to users.
    as_json: bool = False  # Whether to print one JSON document instead of the table.
    junit: Path | None = None  # Where to write a JUnit report, if anywhere.

    @property
    def isolation(self) -> str:
        """Return the isolation under attack, by its name on the command line."""
        return self.tier.value if self.against == "sandbox" else Tier.GUARD.value

    def setup(self) -> Setup:
        """Return the target of the attempts.

        Raises:
            UsageError: No layer would be left.
        """
        modes = (self.reuse,) if self.reuse else tuple(Mode)
        if self.against == "sandbox":
            return Setup(program=_PROGRAM, guard=self.guard, tier=self.tier, uids=self.uids, modes=modes)
        if self.reuse:
            raise UsageError("--against monkeypatch keeps no workers; leave out --reuse")
        if not self.guard:
            raise UsageError("--against monkeypatch is the guard alone; leave out --without-guard")
        left_out = tuple(layer for layer in LAYERS if layer not in _KEPT)
        return Setup(program=_PROGRAM, without=left_out, naive=True)

    def attempts(self) -> tuple[Attempt, ...]:
        """Return the requested attempts.

        Raises:
            UsageError: An id is unknown, or no attempt has one of the kinds and one of the ids.
        """
        ids = {attempt.id for attempt in EVERY}
        for name in self.only:
            if name not in ids:
                raise UsageError(f"no attempt is called {name!r}; `runner selftest` lists them all")
        chosen = tuple(
            attempt
            for attempt in EVERY
            if attempt.kind in (self.kinds or AttemptKind) and attempt.id in (self.only or ids)
        )
        if not chosen:
            raise UsageError("no attempt is of these kinds and has one of these ids")
        return chosen


def settings_to_attack(isolation: str | None, *, against: Against) -> ExecutionSettings:
    """Return the settings of the attempts' calls.

    Args:
        isolation: The tier of `--isolation`, if one was given.
        against: Target of the attempts.

    Raises:
        UsageError: A setting is wrong, or the tier has no layers to attack.
    """
    if against == "monkeypatch":
        if isolation is not None:
            raise UsageError("--against monkeypatch is the guard alone, in no tier; leave out --isolation")
        isolation = Tier.PROCESS.value
    settings = load({**_NOWHERE, "isolation": isolation} if isolation else _NOWHERE)
    if settings.isolation == Tier.GUARD.value:
        raise UsageError(
            "--isolation guard holds nothing; --against monkeypatch shows what gets out there, "
            "and --isolation process, user or namespace what is held"
        )
    return settings


async def selftest_from_shell(options: SelftestOptions) -> int:
    """Run the attempts, print the report, and return the exit status: 1 if one escaped.

    Raises:
        UsageError: The options are incompatible.
        SandboxError: No worker could be started.
    """
    setup, attempts = options.setup(), options.attempts()
    if options.junit is not None and not os.access(options.junit.parent, os.W_OK):
        raise UsageError(f"--junit {options.junit}: its folder cannot be written; name another file")
    done, total = itertools.count(1), len(attempts) * len(setup.modes)

    def count(_trial: Trial) -> None:
        if sys.stderr.isatty():
            number = next(done)
            draw(f"\r\x1b[K{number}/{total}" if number < total else "\r\x1b[K", sys.stderr)
            sys.stderr.flush()

    report = await run(attempts, setup, tell=count)
    if options.junit is not None:
        options.junit.write_bytes(_junit(report, options))
    print(json_text(_json(report, options), indent=2) if options.as_json else _text(report, options))  # noqa: T201
    return 0 if report.held else 1


def _text(report: SelftestReport, options: SelftestOptions) -> str:
    lines = [f"isolation: {options.isolation}", ""]
    for mode in report.modes:
        lines += [f"worker_reuse = {mode.value}: {_MEANING[mode]}", ""]
        for kind in AttemptKind:
            trials = [trial for trial in report.in_mode(mode).trials if trial.attempt.kind is kind]
            if trials:
                lines += [f"{kind.value}: {len(trials)} attempts", *_rows(trials), ""]
    return "\n".join([*lines, *_explained(report), _summary(report)])


def _rows(trials: Sequence[Trial]) -> Iterator[str]:
    names = max(len(trial.attempt.id) for trial in trials)
    words = max(len(trial.attempt.technique) for trial in trials)
    for verdict in _ORDER:
        for trial in (each for each in trials if each.verdict is verdict):
            attempt = trial.attempt
            row = f"  {verdict.value:<17} {attempt.id:<{names}}  {attempt.technique:<{words}}  {_why(trial)}"
            yield row.rstrip()


def _why(trial: Trial) -> str:
    if trial.verdict is TrialVerdict.LEFT_OPEN and trial.attempt.residue is not None:
        return f"SECURITY.md: {trial.attempt.residue.value}"
    if isinstance(trial.seen.during, Blind):
        return trial.seen.during.reason
    if trial.verdict is TrialVerdict.NOT_PROVABLE:
        return f"unconfined: {trial.control.error or 'no effect'}"
    return trial.stopped_by


def _explained(report: SelftestReport) -> Iterator[str]:
    if report.of(TrialVerdict.NOT_PROVABLE):
        yield (
            "not provable here: it does not get out of an unconfined process either, "
            "or the host may not look; it is not counted"
        )
    if report.of(TrialVerdict.LEFT_OPEN):
        yield "left open: SECURITY.md says what it comes to, under the heading named; it is not counted"


def _summary(report: SelftestReport) -> str:
    parts = []
    for mode in report.modes:
        part = report.in_mode(mode)
        out = len(part.of(TrialVerdict.GOT_OUT))
        counted = f"{len(part.counted)} attempts, {len(part.kinds)} kinds"
        parts.append(f"worker_reuse = {mode.value}: {counted}: {out if out else 'nothing'} got out")
    return "\n".join([*parts, f"{report.elapsed_s:.0f} s"])


def _json(report: SelftestReport, options: SelftestOptions) -> dict[str, Any]:
    return {
        "against": options.against,
        "isolation": options.isolation,
        "worker_reuse": [mode.value for mode in report.modes],
        "guard": options.guard,
        "held": report.held,
        "counted": len(report.counted),
        "kinds": [kind.value for kind in report.kinds],
        "verdicts": {verdict.name.lower(): len(report.of(verdict)) for verdict in TrialVerdict},
        "elapsed_s": round(report.elapsed_s, 1),
        "attempts": [
            {
                "id": trial.attempt.id,
                "kind": trial.attempt.kind.value,
                "worker_reuse": trial.mode.value,
                "technique": trial.attempt.technique,
                "verdict": trial.verdict.name.lower(),
                "got_out_unconfined": trial.provable,
                "stopped_by": trial.stopped_by or None,
                "left_open_by": trial.attempt.residue.value if trial.attempt.residue else None,
            }
            for trial in report.trials
        ],
    }


def _junit(report: SelftestReport, options: SelftestOptions) -> bytes:
    name = f"runner selftest, isolation {options.isolation}"
    suites = Xml.Element("testsuites", name=name, time=f"{report.elapsed_s:.1f}")
    for kind in AttemptKind:
        trials = [trial for trial in report.trials if trial.attempt.kind is kind]
        if trials:
            suites.append(_suite(kind, trials))
    Xml.indent(suites)
    text: bytes = Xml.tostring(suites, encoding="utf-8", xml_declaration=True)
    return text


def _suite(kind: AttemptKind, trials: Sequence[Trial]) -> "Xml.Element":
    failed = sum(trial.verdict is TrialVerdict.GOT_OUT for trial in trials)
    skipped = sum(trial.verdict in (TrialVerdict.NOT_PROVABLE, TrialVerdict.LEFT_OPEN) for trial in trials)
    counts = {"tests": str(len(trials)), "failures": str(failed), "skipped": str(skipped)}
    suite = Xml.Element("testsuite", {"name": kind.value, **counts})
    for trial in trials:
        case = Xml.SubElement(
            suite, "testcase", classname=f"selftest.{kind.value}.{trial.mode.value}", name=trial.attempt.id
        )
        if trial.verdict is TrialVerdict.GOT_OUT:
            Xml.SubElement(case, "failure", message=f"{trial.attempt.technique} got out")
        elif trial.verdict is not TrialVerdict.HELD:
            Xml.SubElement(case, "skipped", message=f"{trial.verdict.value}: {_why(trial)}")
    return suite
