"""A run: every attempt tried unconfined, as a control, and in workers; and the result."""

import asyncio
import contextlib
import enum
import importlib.util
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sandbox.deadlines import Deadlines, Rung
from sandbox.host.forkserver import Forkserver
from sandbox.host.pool import IdleWorkers, Pool
from sandbox.host.retirement import Reuse
from sandbox.outcome import Ending, Outcome
from sandbox.policy import Policy
from sandbox.probe.machine import TRIAL_UID, Tier
from sandbox.readable import Readable, default_read
from sandbox.selftest.attempt import (
    SECRET_FILE,
    SECRET_WORD,
    ActEvidence,
    Attempt,
    AttemptKind,
    Blind,
    Residue,
)
from sandbox.selftest.control import Controls, claimed, controls, looked
from sandbox.selftest.program import HARMLESS
from sandbox.selftest.world import LIMITS, Ground, World, ground, world

__all__ = ["Mode", "SelftestReport", "Setup", "Trial", "TrialVerdict", "run"]

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LOAD_S = 30.0
_CALLS = 1000
_AT_ONCE = 4


class Mode(enum.Enum):
    """Lifetime of the worker of an attempt: the values of the setting `worker_reuse`."""

    USER = "user"
    """It has served a call of the attacker before, was stopped and continued, and stays afterwards."""
    CALL = "call"
    """It is created for the attempt, and ends with it."""


class TrialVerdict(enum.Enum):
    """The result of an attempt."""

    HELD = "held"
    GOT_OUT = "GOT OUT"
    LEFT_OPEN = "left open"
    NOT_PROVABLE = "not provable here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """An attempt and its result."""

    attempt: Attempt  # The attempt.
    provable: bool  # Whether it escapes without confinement, so that its denial is significant.
    escaped: bool  # Whether it escaped the confinement.
    seen: ActEvidence  # Evidence of the confined act.
    control: ActEvidence  # Evidence of the unconfined one.
    left_open: bool = False  # Whether this is a documented gap of the tier, in SECURITY.md.
    mode: Mode = Mode.CALL  # Lifetime of its worker.

    @property
    def verdict(self) -> TrialVerdict:
        """Return its result."""
        if self.escaped:
            return TrialVerdict.LEFT_OPEN if self.left_open else TrialVerdict.GOT_OUT
        is_known = self.provable and not isinstance(self.seen.during, Blind)
        return TrialVerdict.HELD if is_known else TrialVerdict.NOT_PROVABLE

    @property
    def stopped_by(self) -> str:
        """Return the error or the layer that stopped it, if known; empty if it escaped."""
        if self.escaped:
            return ""
        if self.seen.guarded:
            return "guard"
        unanswered = "refused by the host" if self.attempt.kind is AttemptKind.ARTIFACT else "no effect"
        return self.seen.error or unanswered


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The sandbox that attempts are made against."""

    program: str = "sandbox.selftest.program"  # Module of the program with the acts.
    guard: bool = True  # Whether the Python patches are in place.
    without: tuple[str, ...] = ()  # Layers left out.
    naive: bool = False  # Whether the host handles outputs like one without a sandbox.
    tier: Tier = Tier.PROCESS  # The set of layers.
    uids: range = range(TRIAL_UID, TRIAL_UID + 1024)  # User ids to assign, in tiers that do so.
    modes: tuple[Mode, ...] = (Mode.CALL,)  # Lifetimes of workers; each attempt is made once in each.

    @property
    def has_ids(self) -> bool:
        """Return whether each user has a user id of its own."""
        return self.tier in (Tier.USER, Tier.NAMESPACE) and os.geteuid() == 0

    def leaves_open(self) -> frozenset[Residue]:
        """Return the gaps of this tier by design, as in SECURITY.md."""
        if self.has_ids or self.tier is Tier.NAMESPACE:
            return frozenset({Residue.LOCKS})
        return frozenset(Residue)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelftestReport:
    """The result of a run."""

    trials: tuple[Trial, ...]  # One for each attempt and mode, in the order of the attempts.
    elapsed_s: float  # Its duration.

    def of(self, verdict: TrialVerdict) -> tuple[Trial, ...]:
        """Return the trials with this verdict."""
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
        """Return the significant trials: their attempt escapes in an unconfined process."""
        return tuple(t for t in self.trials if t.verdict in (TrialVerdict.HELD, TrialVerdict.GOT_OUT))

    @property
    def kinds(self) -> tuple[AttemptKind, ...]:
        """Return the kinds of the trials that were counted."""
        return tuple(kind for kind in AttemptKind if any(t.attempt.kind is kind for t in self.counted))

    @property
    def held(self) -> bool:
        """Return whether no attempt escaped, except for gaps of the tier."""
        return not self.of(TrialVerdict.GOT_OUT)


async def run(
    attempts: Sequence[Attempt], setup: Setup, *, tell: Callable[[Trial], None] = lambda _trial: None
) -> SelftestReport:
    """Try every attempt, each in a worker of its own, once in each mode of the setup.

    Raises:
        SandboxError: No worker could be started.
    """
    started = time.monotonic()
    with ground(setup.uids if setup.has_ids else None) as made:
        environment = {
            "PATH": _PATH,
            "LANG": "C.UTF-8",
            SECRET_FILE: str(made.word_file),
            SECRET_WORD: made.word,
            # Needed to find packages in a checkout.
            **{name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},
        }
        spec = importlib.util.find_spec(setup.program)
        file = Path(spec.origin if spec is not None and spec.origin else __file__)
        readable = default_read(
            deny=(made.homes,), never=(made.state,), beside=(file,), extra=(made.shared, file.parent)
        )
        forkserver = await Forkserver.start(setup.program, environment=environment, lasting=False)
        try:
            with controls(setup.program, made, environment) as unconfined:
                bench = _Bench(
                    ground=made, controls=unconfined, forkserver=forkserver, setup=setup, readable=readable
                )
                trials = await _tried(bench, attempts, tell)
        finally:
            await forkserver.close()
    return SelftestReport(trials=tuple(trials), elapsed_s=time.monotonic() - started)


async def _tried(bench: "_Bench", attempts: Sequence[Attempt], tell: Callable[[Trial], None]) -> list[Trial]:
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(attempt: Attempt) -> list[Trial]:
        async with places:
            tried = await bench.trials(attempt)
        for trial in tried:
            tell(trial)
        return tried

    tasks = [asyncio.create_task(one(attempt)) for attempt in attempts]
    try:
        return [trial for tried in await asyncio.gather(*tasks) for trial in tried]
    finally:
        # When one has failed, the others are stopped.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    """Resources shared by all trials of a run."""

    ground: Ground
    controls: Controls
    forkserver: Forkserver
    setup: Setup
    readable: Readable

    async def trials(self, attempt: Attempt) -> list[Trial]:
        """Try one attempt, first without confinement and then in a worker, once in each mode."""
        provable, control = await asyncio.to_thread(self.controls.run, attempt)
        tried = []
        for mode in self.setup.modes:
            # In a thread: the file system would block the event loop.
            stack = contextlib.ExitStack()
            made = await asyncio.to_thread(stack.enter_context, world(self.ground))
            try:
                escaped, seen = await self._confined(attempt, made, mode)
            finally:
                await asyncio.to_thread(stack.close)
            trial = Trial(
                attempt=attempt,
                provable=provable,
                escaped=escaped,
                seen=seen,
                control=control,
                left_open=attempt.residue in self.setup.leaves_open(),
                mode=mode,
            )
            tried.append(trial)
        return tried

    async def _confined(self, attempt: Attempt, made: World, mode: Mode) -> tuple[bool, ActEvidence]:
        policy = Policy(
            home=made.path,
            read=self.readable.read,
            list_only=self.readable.list_only,
            names=self.readable.names,
            homes=(self.ground.homes,),
            environment={"PATH": _PATH, "HOME": str(made.path), "TMPDIR": str(made.path)},
            limits=LIMITS,
            uid=made.uid if self.setup.has_ids else None,
            namespaces=self.setup.tier is Tier.NAMESPACE,
            hidden=(self.ground.state,),
            guard=self.setup.guard,
            without=self.setup.without,
        )
        pool = await Pool.start(
            self.forkserver,
            policy,
            {},
            home_fd=made.fd,
            load_timeout_s=_LOAD_S,
            idle_workers=IdleWorkers(least=0, most=0),
            reuse=Reuse(calls=_CALLS if mode is Mode.USER else 1),
        )
        try:
            if self.setup.tier is Tier.NAMESPACE:
                made = replace(made, zygote=pool.zygote.pid)
            if mode is Mode.USER:
                # The worker has served its user before, is stopped, and continued for the attempt.
                lease = await pool.lease(LIMITS, keeps=True)
                await lease.run(HARMLESS, deadlines=Deadlines(), listener=_Listener())
                await lease.at_rest()
                lease.release()
            lease = await pool.lease(LIMITS, keeps=mode is Mode.USER)
            listener = _Listener(look=partial(looked, attempt, made, lease.worker.pid))
            deadlines = Deadlines(idle_s=attempt.limit_s, total_s=1.5 * attempt.limit_s)
            call = {"id": attempt.id, "place": made.place.to_json()}
            outcome = await lease.run(call, deadlines=deadlines, listener=listener)
            await lease.at_rest()
            seen = replace(_seen(outcome), during=listener.found, naive=self.setup.naive)
            escaped = await asyncio.to_thread(attempt.escaped, made, seen)
            lease.release()
            return escaped, seen
        finally:
            pool.close()
            await pool.zygote.settled()


@dataclass(slots=True, kw_only=True)
class _Listener:
    """Listener that inspects a worker when its act has returned and waits."""

    look: Callable[[], object] = lambda: None
    found: object = None

    async def notify(self, value: Mapping[str, object]) -> None:
        """Ignore progress."""

    async def request(self, value: Mapping[str, object]) -> Mapping[str, object]:
        """Inspect the worker, and let the act continue."""
        self.found = await asyncio.to_thread(self.look)
        return {"looked": True}

    def waits_for_client(self, value: Mapping[str, object]) -> bool:
        """Return False: no request waits for a client."""
        return False

    async def rung(self, rung: Rung) -> None:
        """Ignore the rung."""


def _seen(outcome: Outcome) -> ActEvidence:
    limit = "" if outcome.reached is None else outcome.reached.limit
    ended = {
        Ending.ANSWERED: None,
        Ending.OVER_LIMIT: f"limit {limit}",
        Ending.CRASHED: (outcome.status or "crashed").removeprefix("signal "),
        Ending.BROKE_PROTOCOL: "refused by the host",
        Ending.IDLE_TIMEOUT: "ended for its silence",
        Ending.TOTAL_TIMEOUT: "ended at its limit",
    }[outcome.ending]
    return replace(claimed(outcome.answer, ended), output_bytes=len(outcome.output.encode()))
