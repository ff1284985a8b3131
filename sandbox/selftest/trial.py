"""One attempt tried twice: unconfined, to show that it works, and in a worker."""

import asyncio
import contextlib
import enum
import importlib.util
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from sandbox.deadlines import Deadlines, Rung
from sandbox.host.forkserver import Forkserver
from sandbox.host.idle_workers import IdleWorkers
from sandbox.host.lease import Lease
from sandbox.host.pool import Pool
from sandbox.host.retirement import Reuse
from sandbox.outcome import Ending, Outcome
from sandbox.policy import Policy
from sandbox.probe.machine import TRIAL_UID, Tier
from sandbox.readable import Readable, default_read
from sandbox.selftest.attempt import SECRET_FILE, SECRET_WORD, ActEvidence, Attempt, AttemptKind, Residue
from sandbox.selftest.control import Controls, claimed, controls, looked
from sandbox.selftest.program import HARMLESS
from sandbox.selftest.world import LIMITS, Ground, World, ground, world

__all__ = ["Bench", "Mode", "Setup", "Trial", "TrialVerdict", "bench"]

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LOAD_S = 30.0
_CALLS = 1000


class Mode(enum.Enum):
    """Lifetime of the worker of an attempt: the values of the setting `worker_reuse`."""

    USER = "user"
    """It has served a call of the attacker before, has been stopped and continued, and stays afterwards."""
    CALL = "call"
    """It is made for the attempt, and ends with it."""


class TrialVerdict(enum.Enum):
    """The result of an attempt."""

    HELD = "held"
    GOT_OUT = "GOT OUT"
    LEFT_OPEN = "left open"
    NOT_PROVABLE = "not provable here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """An attempt and its result.

    Attributes:
        attempt: The attempt.
        provable: Whether it gets out without confinement, so that its being held means something.
        escaped: Whether it got out of the confinement.
        seen: Evidence of the confined act.
        control: Evidence of the unconfined one.
        left_open: Whether the tier leaves this open, as SECURITY.md says.
        mode: Lifetime of its worker.
    """

    attempt: Attempt
    provable: bool
    escaped: bool
    seen: ActEvidence
    control: ActEvidence
    left_open: bool = False
    mode: Mode = Mode.CALL

    @property
    def verdict(self) -> TrialVerdict:
        """Return its result."""
        if self.escaped:
            return TrialVerdict.LEFT_OPEN if self.left_open else TrialVerdict.GOT_OUT
        return TrialVerdict.HELD if self.provable and not self.seen.blind else TrialVerdict.NOT_PROVABLE

    @property
    def stopped_by(self) -> str:
        """Return the error or the part that held it, as far as it is known; empty where it got out."""
        if self.escaped:
            return ""
        if self.seen.guarded:
            return "guard"
        unanswered = "refused by the host" if self.attempt.kind is AttemptKind.ARTIFACT else "no effect"
        return self.seen.error or unanswered


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The sandbox that attempts are made against.

    Attributes:
        program: Module of the program that has the acts.
        guard: Whether the Python patches are in place.
        without: Layers left out.
        naive: Whether the host handles outputs as one without a sandbox does.
        tier: Which layers there are.
        uids: User ids to give to users, in tiers that do so.
        modes: Lifetimes of workers; each attempt is made once in each.
    """

    program: str = "sandbox.selftest.program"
    guard: bool = True
    without: tuple[str, ...] = ()
    naive: bool = False
    tier: Tier = Tier.PROCESS
    uids: range = range(TRIAL_UID, TRIAL_UID + 1024)
    modes: tuple[Mode, ...] = (Mode.CALL,)

    @property
    def has_ids(self) -> bool:
        """Return whether each user has a user id."""
        return self.tier in (Tier.USER, Tier.NAMESPACE) and os.geteuid() == 0

    def leaves_open(self) -> frozenset[Residue]:
        """Return the residues that this tier leaves open by design, as in SECURITY.md."""
        if self.has_ids or self.tier is Tier.NAMESPACE:
            return frozenset({Residue.LOCKS})
        return frozenset(Residue)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The place where attempts are tried. Make one with `bench`."""

    ground: Ground
    controls: Controls
    forkserver: Forkserver
    setup: Setup
    readable: Readable

    async def trials(self, attempt: Attempt) -> list[Trial]:
        """Try one attempt, first without confinement and then in a worker, once in each mode.

        Raises:
            SandboxError: No worker could be had; nothing is known then.
        """
        provable, control = await asyncio.to_thread(self.controls.run, attempt)
        left_open = attempt.residue in self.setup.leaves_open()
        trial = partial(Trial, attempt=attempt, provable=provable, control=control, left_open=left_open)
        tried = []
        for mode in self.setup.modes:
            escaped, seen = await self._confined(attempt, mode)
            tried.append(trial(escaped=escaped, seen=seen, mode=mode))
        return tried

    async def _confined(self, attempt: Attempt, mode: Mode) -> tuple[bool, ActEvidence]:
        async with _in_thread(world(self.ground)) as bare, self._pool(bare, mode) as pool:
            elsewhere = self.setup.tier is Tier.NAMESPACE
            made = replace(bare, zygote=pool.zygote.pid if elsewhere else 0)
            lease = await _leased(pool, mode)
            listener = _Listener(look=partial(looked, attempt, made, lease.worker.pid))
            deadlines = Deadlines(idle_s=attempt.limit_s, total_s=1.5 * attempt.limit_s)
            call = {"id": attempt.id, "place": made.place.to_json()}
            outcome = await lease.run(call, deadlines=deadlines, listener=listener)
            await lease.at_rest()
            seen = replace(_seen(outcome), during=listener.found, naive=self.setup.naive)
            escaped = await asyncio.to_thread(attempt.escaped, made, seen)
            lease.release()
            return escaped, seen

    @asynccontextmanager
    async def _pool(self, made: World, mode: Mode) -> AsyncIterator[Pool]:
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
            yield pool
        finally:
            pool.close()
            await pool.zygote.settled()


async def _leased(pool: Pool, mode: Mode) -> Lease:
    """Lease a worker: one that has served its user before, been stopped and is continued, if it stays."""
    if mode is Mode.USER:
        lease = await pool.lease(LIMITS, keeps=True)
        await lease.run(HARMLESS, deadlines=Deadlines(), listener=_Listener())
        await lease.at_rest()
        lease.release()
    return await pool.lease(LIMITS, keeps=mode is Mode.USER)


@dataclass(slots=True, kw_only=True)
class _Listener:
    """Looks at a worker when its act has returned and holds still."""

    look: Callable[[], object] = lambda: None
    found: object = None

    async def notify(self, value: Mapping[str, object]) -> None:
        """Ignore progress."""

    async def request(self, value: Mapping[str, object]) -> Mapping[str, object]:
        """Look, and let the act go on."""
        self.found = await asyncio.to_thread(self.look)
        return {"looked": True}

    def waits_for_client(self, value: Mapping[str, object]) -> bool:
        """Return that nobody else is waited for."""
        return False

    async def rung(self, rung: Rung) -> None:
        """Ignore that time passes."""


@asynccontextmanager
async def bench(setup: Setup) -> AsyncIterator[Bench]:
    """Make a scratch world and a forkserver for attempts; take both away at the end."""
    with ground(setup.uids if setup.has_ids else None) as made:
        environment = {
            "PATH": _PATH,
            "LANG": "C.UTF-8",
            SECRET_FILE: str(made.word_file),
            SECRET_WORD: made.word,
            # Where packages are found, in a checkout.
            **{name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},
        }
        spec = importlib.util.find_spec(setup.program)
        file = made.homes.parent.joinpath(spec.origin if spec is not None and spec.origin else __file__)
        readable = default_read(
            deny=(made.homes,),
            never=(made.state,),
            beside=(file,),
            extra=(made.shared, file.parent),
        )
        forkserver = await Forkserver.start(setup.program, environment=environment, lasting=False)
        try:
            with controls(setup.program, made, environment) as unconfined:
                yield Bench(
                    ground=made,
                    controls=unconfined,
                    forkserver=forkserver,
                    setup=setup,
                    readable=readable,
                )
        finally:
            await forkserver.close()


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


@asynccontextmanager
async def _in_thread(manager: "contextlib.AbstractContextManager[World]") -> AsyncIterator[World]:
    """Enter and leave a context manager that waits for the file system, without keeping the loop."""
    made = await asyncio.to_thread(manager.__enter__)
    try:
        yield made
    finally:
        await asyncio.to_thread(manager.__exit__, None, None, None)
