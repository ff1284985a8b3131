"""One request in one leased worker: its limits and secrets, the run itself, and the cleanup."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from mcp_types import INTERNAL_ERROR

from runner.homes.changes import Changes
from runner.homes.leftovers import Leftovers
from runner.steps.listener import CallListener, widened
from runner.steps.request import Request, wants_report
from runner.steps.tool_output import LiveOutput, report_output
from runner.steps.verdict import denial_facts
from runner.system.threads import run_in_thread
from runner.toolset.catalog import ToolSpec
from runner.toolset.toolset import Toolset
from runner.toolset.user_pool import HomeAccess, UserPool
from runner.users.tool_secrets import NO_SECRETS, CallSecrets
from sandbox.deadlines import Rung
from sandbox.errors import ZygoteDied
from sandbox.host.lease import Lease
from sandbox.outcome import Denial, Ending, Outcome

__all__ = ["run_in_lease"]

log = logging.getLogger(__name__)

# Endings by the host.
_ENDED = (Ending.IDLE_TIMEOUT, Ending.TOTAL_TIMEOUT, Ending.OVER_LIMIT)
_LAST_NOTICE_S = 1.0


async def run_in_lease(
    toolset: Toolset,
    request: Request,
    params: Mapping[str, Any],
    user_pool: UserPool,
    listener: CallListener,
    *,
    spec: ToolSpec | None,
    changes: Changes | None = None,
) -> tuple[Lease, Outcome]:
    """Lease a worker, run the request in it, and discard the files of a call that was ended.

    The caller releases the lease once it has read everything of the call.
    """
    tool = None if spec is None else spec.name
    effective = toolset.effective(tool)
    limits = effective.limits
    secrets = NO_SECRETS
    if spec is not None and toolset.secrets.rules:
        secrets = toolset.secrets.of(spec.name, request.user.name)
    listener.masked = secrets.masked
    frame = {
        "method": request.method,
        "params": widened(params),
        "facts": vars(request.facts),
        "known_state": toolset.state.visibility(request.user.segment),
        "answer_bytes": limits.frame_bytes,
        "secrets": secrets.values,
    }
    leftovers = None
    # Workers that may only read a home leave nothing there.
    if user_pool.home is not None and user_pool.key.access is HomeAccess.WRITE:
        leftovers = await Leftovers.before(user_pool.home.fd, changes)
    wants_job = spec is not None and spec.wants_background
    wish = None if spec is None else spec.wants_worker
    shares = effective.may_share_worker if wish == "shared" else effective.shares_worker and wish != "own"
    lease = await user_pool.pool.lease(
        limits if leftovers is None else leftovers.room(limits),
        # A process that has held a secret may neither run nor park for another call.
        keeps=effective.keeps_worker and not secrets.values and wish != "fresh",
        shares=shares,
        goes_on=effective.lets_go_on and wants_job,
        session=request.user.session,
    )
    request.steps.is_fresh = lease.worker.calls == 0
    if wants_job or lease.worker.goes_on:
        request.steps.goes_on = lease.goes_on or lease.worker.goes_on
    lease.measured = wants_report(request.params)
    request.steps.done("lease")
    # With secrets, the whole output is masked at the end instead.
    is_live = toolset.settings.tool_output == "client" and not secrets.values
    live = LiveOutput(lease, listener) if is_live else None
    following = None if live is None else asyncio.create_task(live.follow())
    try:
        if request.begins is not None:
            await request.begins()
        try:
            outcome = await _run_and_discard(toolset, request, user_pool, lease, frame, listener, leftovers)
        finally:
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
        if secrets.values:
            outcome = await asyncio.to_thread(_masked, outcome, secrets, limits.output_bytes)
        if outcome.output or live is not None or (outcome.answer or {}).get("raised"):
            to = toolset.settings.tool_output
            await report_output(outcome, listener, tool=tool, to=to, live=live)
        was_silent = outcome.ending in (Ending.IDLE_TIMEOUT, Ending.TOTAL_TIMEOUT)
        if outcome.untold or was_silent:
            await _tell_of_the_end(outcome, listener, tool=tool, was_silent=was_silent)
    except BaseException:
        # Also on cancellation: otherwise the worker would never be released.
        await lease.abandon()
        raise
    answer = outcome.answer or {}
    error = answer.get("error") if request.method.endswith("/list") else None
    if isinstance(error, Mapping) and error.get("code") == INTERNAL_ERROR:
        # An earlier call has broken its server, so it fails outside of tools.
        log.warning("worker ended: listing failed", extra={"method": request.method})
        await lease.retire("broken")
    if lease.keeps and answer.get("own_lists") is True:
        # The session has its own lists: from now on, this worker serves its requests first.
        lease.set_apart()
        toolset.set_apart(request.user, user_pool)
    for denial in outcome.denials:
        facts = denial_facts(denial, toolset.settings.homes)
        log.warning("denied", extra={"user": request.user.name, **facts})
    return lease, outcome


async def _run_and_discard(
    toolset: Toolset,
    request: Request,
    user_pool: UserPool,
    lease: Lease,
    frame: Mapping[str, Any],
    listener: CallListener,
    leftovers: Leftovers | None,
) -> Outcome:
    """Run the request in a leased worker; discard what it left behind if it was ended."""
    outcome: Outcome | None = None
    try:
        running = lease.run(frame, deadlines=listener.deadlines, listener=listener)
        outcome = await toolset.memory_guard.watched(lease, running)
        if leftovers is not None and lease.home_fd is not None and outcome.ending is Ending.ANSWERED:
            reached = await leftovers.overfilled(lease.home_fd, lease.limits)
            if reached is not None:
                outcome = replace(outcome, ending=Ending.OVER_LIMIT, reached=reached)
                # Its files are discarded next, so none of its processes may write more.
                await lease.retire("limit")
        request.steps.done("run")
        request.steps.outcome = outcome
    finally:
        # Partial results are discarded, unless another call or a job runs, whose files they might be.
        ended = outcome is None or outcome.ending in _ENDED
        changes = None if leftovers is None else leftovers.changes
        alone = changes is not None and changes.is_alone and not user_pool.pool.has_jobs
        if ended and alone and leftovers is not None and user_pool.home is not None:
            await lease.at_rest()
            await run_in_thread(leftovers.beside_others().discard, user_pool.home.fd)
    if not outcome.may_have_started:
        raise lease.zygote.loss or ZygoteDied(f"a worker ended before its call ({outcome.status})")
    return outcome


def _masked(outcome: Outcome, secrets: CallSecrets, output_bytes: int) -> Outcome:
    """Return the outcome of a call without the values of its secrets.

    Args:
        outcome: The outcome.
        secrets: The secrets.
        output_bytes: Most bytes of its output that are stored; the cut may be within a value.
    """
    denials = [asdict(denial) for denial in outcome.denials]
    was_cut = len(outcome.output.encode(errors="replace")) >= output_bytes
    return replace(
        outcome,
        answer=secrets.masked(outcome.answer),
        denials=tuple(Denial(**denial) for denial in secrets.masked(denials)),
        output=(secrets.masked_end if was_cut else secrets.masked_text)(outcome.output),
        cause=secrets.masked(outcome.cause),
        fault=secrets.masked(outcome.fault),
    )


async def _tell_of_the_end(
    outcome: Outcome, listener: CallListener, *, tool: str | None, was_silent: bool
) -> None:
    """Notify the client of dropped messages and of the end of its call, if it accepts that."""
    # A client that does not read must not occupy the place of a finished call.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LAST_NOTICE_S):
            if outcome.untold:
                log.warning("notifications dropped", extra={"tool": tool, "count": outcome.untold})
                await listener.dropped(outcome.untold)
            if was_silent:
                await listener.rung(Rung.IDLE_END)
