"""Calls in the workers of one user, which stay, and what has become of the workers."""

from typing import Any, TypedDict, Unpack

from pools import Ears
from support import alive, becomes

from sandbox.deadlines import Deadlines
from sandbox.host.lease import Lease
from sandbox.host.pool import Pool
from sandbox.host.worker import Worker
from sandbox.outcome import Outcome
from sandbox.policy import Limits

__all__ = ["Options", "leased", "rests", "run", "value"]

_SEEN: dict[Pool, set[Worker]] = {}


class Options(TypedDict, total=False):
    """Options of a call: see `leased`."""

    keeps: bool
    goes_on: bool
    session: str | None
    limits: Limits | None
    ears: Ears | None
    idle_s: float
    total_s: float


async def leased(
    pool: Pool,
    act: str,
    *args: object,
    keeps: bool = True,
    goes_on: bool = False,
    session: str | None = None,
    limits: Limits | None = None,
    ears: Ears | None = None,
    **times: float,
) -> tuple[Lease, Outcome]:
    """Run a call; return its lease, which is to be released, and how it ended."""
    wanted = limits or pool.policy.limits
    lease = await pool.lease(wanted, keeps=keeps, goes_on=goes_on, session=session)
    _SEEN.setdefault(pool, set()).add(lease.worker)
    deadlines = Deadlines(**{"idle_s": 120.0, "total_s": 180.0, **times})
    call = {"act": act, "args": list(args)}
    return lease, await lease.run(call, deadlines=deadlines, listener=ears or Ears())


async def run(pool: Pool, act: str, *args: object, **options: Unpack[Options]) -> Outcome:
    """Run a call and release its worker; return how it ended."""
    lease, outcome = await leased(pool, act, *args, **options)
    lease.release()
    return outcome


def value(outcome: Outcome) -> Any:
    """Return the answer of a call that ended well."""
    assert outcome.answer is not None, outcome
    return outcome.answer["value"]


async def rests(pool: Pool, *, held: Lease | None = None) -> None:
    """Wait until every worker that has served a call is stopped, or gone; not the one that is held."""
    waiting = [worker for worker in _SEEN[pool] if held is None or worker is not held.worker]
    assert await becomes(lambda: all(worker.has_stopped or not alive(worker.pid) for worker in waiting))
