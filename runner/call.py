"""One tool call, from its arguments to its contract value. Start reading here.

`execute` is the spine: `runner serve` and `runner call` both run it; the steps that calls of other servers'
tools take too are in `runner.steps.execution`. Middleware does authentication and request logging only. Other
requests that reach author code (`resources/read`, `prompts/get`, lists, completions) are calls too: `relay`
runs each in a worker of its own that may write nothing.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from runner.artifacts.generated import Generated, keep_generated, not_returned
from runner.artifacts.put_while_running import Puts
from runner.contract.envelope import lost, no_process, tool_not_found
from runner.errors import CallError, Code
from runner.homes.changes import Changes
from runner.homes.homes import HomeLease
from runner.homes.leftovers import Leftovers
from runner.settings.lendable import flag_for
from runner.steps.authorization import authorize, authorize_widget
from runner.steps.execution import (
    SHORT_BYTES,
    Completed,
    Executed,
    Left,
    Place,
    Request,
    conclude,
    file_delivery_of,
    listener_of,
    perform,
)
from runner.steps.inputs import check_json
from runner.steps.listener import CallListener, Nobody, widened
from runner.steps.rewriting import Inputs
from runner.steps.timing import Steps, wants_report
from runner.steps.verdict import judge
from runner.system.logging_setup import CallScope
from runner.toolset.catalog import ToolSpec
from runner.toolset.toolset import Cell
from runner.toolset.user_pool import Access, Seat, SeatKey
from runner.users.identity import User
from runner.worker.wire import FIND_TOOL, LATEST_PROTOCOL, ROUTE, VISIBILITY_SUFFIX, RequestFacts, WireError
from sandbox.deadlines import Rung
from sandbox.errors import ForkserverDied, LoadError, NoProcess, SandboxError, ZygoteDied
from sandbox.host.lease import Lease
from sandbox.outcome import Denial, Ending, Outcome

__all__ = ["Completed", "Request", "ask_route", "execute", "relay"]

log = logging.getLogger(__name__)

R = TypeVar("R")

_NOT_OF_FILES = ("run", "connect", "lookup")
# A call that we have ended.
_ENDED = (Ending.IDLE_TIMEOUT, Ending.TOTAL_TIMEOUT, Ending.OVER_LIMIT)
_LAST_NOTICE_S = 1.0
# How often a call that has not begun is tried anew, where the forkserver ends and ends.
_ANEW = 3


async def execute(cell: Cell, request: Request) -> Completed:
    """Run one `tools/call` from identity to contract value.

    Never raises for what a caller, a tool or we did wrong: that is an error envelope in the result.

    Raises:
        WireError: The tool's server answered with a JSON-RPC error, which goes to the client as it is.
    """
    with CallScope(request.id):
        return await _execute(cell, request)


async def _execute(cell: Cell, request: Request) -> Completed:
    spec = cell.catalog.tools.get(request.tool)
    listener = _listener(cell, request, request.tool)
    act = partial(_admitted, cell, request, spec, listener, now=time.monotonic())
    return await conclude(cell, request, act, spec=spec, publish=listener.publish, through=WireError)


async def _admitted(
    cell: Cell, request: Request, spec: ToolSpec | None, listener: CallListener, *, now: float
) -> Completed:
    name = request.tool
    spec, at = await _offered(cell, request, spec)
    if spec is None:
        raise tool_not_found(name, list(cell.catalog.tools))
    authorize(spec, request.facts)
    authorize_widget(name, spec.widgets, request.params)
    most = cell.terms(name).calls_per_minute
    cell.throttle.admit(request.user.segment, name, most=most, now=now)
    check_json(request.params)
    async with cell.drain.call(listener.tell):
        try:
            return await _begun(partial(_in_a_seat, cell, request, spec, listener, at), request.user)
        except SandboxError as error:
            log.warning("no worker", extra={"problem": str(error)})
            raise _unavailable(error) from error


async def _begun(act: Callable[[], Awaitable[R]], user: User) -> R:
    """Do what needs a worker; once more, or a few times, if its zygote ends before it has begun."""
    for _ in range(_ANEW):
        try:
            return await act()
        except ZygoteDied as error:
            # Perhaps for what another call of the user did, or with the forkserver. This one has not begun:
            # whoever has a worker hears of its end in another way.
            log.warning("a zygote ended before a call had its worker", extra={"user": user.name})
            if not isinstance(error, ForkserverDied):
                break
    return await act()


async def _offered(
    cell: Cell, request: Request, spec: ToolSpec | None
) -> tuple[ToolSpec | None, SeatKey | None]:
    """Return the tool as this user is offered it now, and the seat whose worker alone has it so.

    A file may offer a session what it did not offer when it was loaded, and a call may change what the server
    in its own worker offers. Only then is that worker asked.
    """
    at = cell.apart(request.user)
    if spec is not None and (
        at is None or at == cell.key(request.user, spec, links=_takes_links(cell, spec))
    ):
        return spec, None
    found = await _found(cell, request)
    return (spec, None) if found == spec else (found, at)


async def _found(cell: Cell, request: Request) -> ToolSpec | None:
    params: dict[str, Any] = {"name": request.tool, "arguments": {}}
    if "_meta" in request.params:
        params["_meta"] = request.params["_meta"]
    asking = replace(request, method=FIND_TOOL, params=params, steps=Steps())
    try:
        (tool,) = (await relay(cell, asking))["tools"]
        return ToolSpec.of(tool, identity=cell.settings.username_parameter)
    except (WireError, AttributeError, KeyError, TypeError, ValueError):
        # There is none, or what came back is none.
        return None


async def _in_a_seat(
    cell: Cell, request: Request, spec: ToolSpec, listener: CallListener, at: SeatKey | None
) -> Completed:
    key = at or cell.key(request.user, spec, links=_takes_links(cell, spec))
    async with (
        cell.admission.admit(request.user.segment),
        _entered(cell.call_locks.calling(request.user.segment)),
        cell.seat(request.user, key) as seat,
    ):
        request.steps.done("admit")
        return await _run(cell, request, spec, seat, listener)


async def relay(cell: Cell, request: Request) -> Mapping[str, Any]:
    """Run any other request that reaches author code; return its wire result.

    Raises:
        WireError: The server answered with a JSON-RPC error.
        CallError: The worker did not answer, or could not be asked.
    """
    check_json(request.params)
    listener = _listener(cell, request, None)
    try:
        async with cell.drain.call(listener.tell, of_tool=False):
            outcome = await _begun(partial(_relayed, cell, request, listener), request.user)
    except SandboxError as error:
        raise _unavailable(error) from error
    return judge(
        outcome,
        listener,
        home=None,
        limits=cell.terms().limits,
        homes=cell.settings.homes,
        unseen=cell.unseen,
    )


async def ask_route(cell: Cell, user: User, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Have an HTTP request answered by a route that the file adds, in a worker of the user.

    Raises:
        WireError: The server answered with a JSON-RPC error, which it does not.
        CallError: The worker did not answer, or could not be asked.
    """
    facts = RequestFacts(
        request_id=None, protocol=LATEST_PROTOCOL, session_id=user.session or "", transport="streamable-http"
    )
    request = Request(user=user, method=ROUTE, params=asked, facts=facts, client=Nobody(), inline_max_bytes=0)
    return await relay(cell, request)


async def _relayed(cell: Cell, request: Request, listener: CallListener) -> Outcome:
    key = cell.apart(request.user) or cell.key(request.user)
    async with (
        cell.admission.admit(request.user.segment),
        _entered(cell.call_locks.calling(request.user.segment)),
        cell.seat(request.user, key) as seat,
    ):
        lease, outcome = await _lease(cell, request, request.params, seat, listener, spec=None)
        _release(cell, lease)
        return outcome


async def _run(cell: Cell, request: Request, spec: ToolSpec, seat: Seat, listener: CallListener) -> Completed:
    """Have the tool executed in a worker of the seat, by the steps that every call takes."""
    home = seat.home if cell.access(spec) is Access.WRITE else None
    files, links = cell.files(request.user, trace=request.id), seat.links or cell.links
    most, total = cell.settings.max_artifact_bytes, cell.settings.max_call_bytes
    puts = Puts(files=files, home=home, max_bytes=most, total_max_bytes=total)
    listener.keep = puts.put
    place = Place(
        inputs=seat.home,
        outputs=home,
        link=lambda file: links.to(files.holder, file.id),
        file_delivery=file_delivery_of(cell.settings),
    )
    in_a_worker = partial(_in_a_worker, cell, request, spec, seat, home, listener, puts)
    return await perform(cell, request, spec, place, listener, in_a_worker)


@contextlib.asynccontextmanager
async def _in_a_worker(
    cell: Cell,
    request: Request,
    spec: ToolSpec,
    seat: Seat,
    home: HomeLease | None,
    listener: CallListener,
    puts: Puts,
    inputs: Inputs,
) -> AsyncIterator[Executed]:
    """Execute a tool of ours; hold its worker until the outputs were read."""
    params = {**request.params, "arguments": inputs.arguments}
    changes = Changes(further=cell.settings.generated_except) if home is not None else None
    with contextlib.closing(changes) if changes is not None else contextlib.nullcontext():
        lease, outcome = await _lease(cell, request, params, seat, listener, spec=spec, changes=changes)
        is_last = changes is not None and changes.end()
    try:
        wire = judge(
            outcome,
            listener,
            home=home.path if home is not None else None,
            unknown=inputs.unknown,
            limits=cell.terms(spec.name).limits,
            homes=cell.settings.homes,
            unseen=cell.unseen,
        )
        yield Executed(
            wire=wire,
            is_long=outcome.answer_bytes > SHORT_BYTES,
            at_rest=lease.at_rest,
            facts=_noted(cell, outcome),
            left=_left(cell, request, spec, home, changes, puts, lease) if is_last else None,
        )
    finally:
        _release(cell, lease)


def _release(cell: Cell, lease: Lease) -> None:
    job = lease.release()
    if job is not None:
        cell.memory_guard.hold(job)


def _takes_links(cell: Cell, spec: ToolSpec) -> bool:
    """Say whether a call of this tool may be given links, and so must be able to fetch them."""
    return spec.takes_links or (cell.settings.file_delivery == "url" and spec.takes_files)


async def _lease(
    cell: Cell,
    request: Request,
    params: Mapping[str, Any],
    seat: Seat,
    listener: CallListener,
    *,
    spec: ToolSpec | None,
    changes: Changes | None = None,
) -> tuple[Lease, Outcome]:
    """Lease a worker, run the request in it, and discard what an ended call left behind.

    The lease is to be released once nothing of the call is read any more.
    """
    terms = cell.terms(None if spec is None else spec.name)
    limits = terms.limits
    frame = {
        "method": request.method,
        "params": widened(params),
        "facts": request.facts.to_json(),
        "known_state": cell.state.ending_in(request.user.segment, VISIBILITY_SUFFIX),
        "answer_bytes": limits.frame_bytes,
    }
    if seat.home is not None and changes is not None:
        changes.begin(seat.home.fd)
    leftovers = await Leftovers.before(seat.home.fd, changes) if seat.home is not None else None
    wants_job = spec is not None and spec.wants_background
    lease = await seat.pool.lease(
        limits if leftovers is None else leftovers.room(limits),
        keeps=terms.keeps_worker and not (spec is not None and spec.wants_fresh_worker),
        goes_on=terms.lets_go_on and wants_job,
        session=request.user.session,
    )
    request.steps.is_fresh = lease.is_fresh
    if wants_job or lease.worker.goes_on:
        request.steps.goes_on = lease.goes_on or lease.worker.goes_on
    lease.measured = wants_report(request.params)
    request.steps.done("lease")
    try:
        outcome = await _led(cell, request, seat, lease, frame, listener, leftovers)
        await _tell_of_the_end(outcome, listener, tool=None if spec is None else spec.name)
    except BaseException:
        # Also when the caller is cancelled: nobody would give the worker back.
        await lease.retire("abandoned")
        raise
    if lease.keeps and (outcome.answer or {}).get("own_lists") is True:
        lease.set_apart()
        cell.set_apart(request.user, seat)
    for denial in outcome.denials:
        facts = {"operation": denial.operation, "path": denial.path, "layer": denial.layer}
        log.warning("denied", extra={"user": request.user.name, **facts})
    return lease, outcome


async def _led(
    cell: Cell,
    request: Request,
    seat: Seat,
    lease: Lease,
    frame: Mapping[str, Any],
    listener: CallListener,
    leftovers: Leftovers | None,
) -> Outcome:
    """Run the request in a leased worker; discard what it left behind if it was ended."""
    outcome: Outcome | None = None
    try:
        running = lease.run(frame, deadlines=listener.deadlines, listener=listener)
        outcome = await cell.memory_guard.watched(lease, running)
        if leftovers is not None and lease.home_fd is not None and outcome.ending is Ending.ANSWERED:
            reached = await leftovers.overfilled(lease.home_fd, lease.limits)
            if reached is not None:
                outcome = replace(outcome, ending=Ending.OVER_LIMIT, reached=reached)
                # What it made is discarded, and none of it may be able to make more.
                await lease.retire("limit")
        request.steps.done("run")
        request.steps.outcome = outcome
    finally:
        # Partial results are discarded, but never beside another call or a job, whose files they might be.
        ended = outcome is None or outcome.ending in _ENDED
        alone = seat.calls == 1 and not seat.pool.has_jobs
        if ended and leftovers is not None and seat.home is not None and alone:
            await asyncio.to_thread(leftovers.discard, seat.home.fd)
    if not outcome.begun:
        raise lease.zygote.loss or ZygoteDied(f"a worker ended before its call ({outcome.status})")
    return outcome


async def _tell_of_the_end(outcome: Outcome, listener: CallListener, *, tool: str | None) -> None:
    """Tell the client what it missed, and that its call was ended, if it takes that."""
    was_silent = outcome.ending in (Ending.IDLE_TIMEOUT, Ending.TOTAL_TIMEOUT)
    if not (outcome.untold or was_silent):
        return
    # A client that takes nothing must not keep the place of a call that is over.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LAST_NOTICE_S):
            if outcome.untold:
                log.warning("notifications were dropped", extra={"tool": tool, "count": outcome.untold})
                await listener.dropped(outcome.untold)
            if was_silent:
                await listener.rung(Rung.IDLE_END)


@contextlib.asynccontextmanager
async def _entered(manager: contextlib.AbstractContextManager[None]) -> AsyncIterator[None]:
    with manager:
        yield


def _listener(cell: Cell, request: Request, tool: str | None) -> CallListener:
    return listener_of(cell, request, tool, cell.terms(tool).deadlines)


def _left(
    cell: Cell,
    request: Request,
    spec: ToolSpec,
    home: HomeLease | None,
    changes: Changes | None,
    puts: Puts,
    lease: Lease,
) -> Left | None:
    """Return what becomes of files that a call has changed in its home and does not return, if any are."""
    if home is None or changes is None or not changes.found:
        return None
    mode = cell.settings.generated_by(spec.name, wish=spec.generated)
    if mode == "ignore":
        return None
    rules = Generated(
        mode="report" if mode == "report" else "keep",
        home=home,
        files=cell.files(request.user, trace=request.id),
        max_bytes=cell.settings.max_artifact_bytes,
        total_max_bytes=cell.settings.max_call_bytes,
        why_not="job_goes_on" if lease.worker.goes_on or cell.has_jobs(home.segment) else None,
    )
    return Left(
        of=lambda normalised: not_returned(changes.found, normalised, home, put=puts.kept),
        keep=lambda processed, left: keep_generated(processed, left, rules, beyond=changes.beyond),
    )


def _noted(cell: Cell, outcome: Outcome) -> dict[str, Any]:
    """Return what is noted in `meta_data` of how a worker fared, if anything is."""
    facts: dict[str, Any] = {"isolation": "guard"} if cell.settings.isolation == "guard" else {}
    if outcome.denials:
        facts["denials"] = [_told(denial, cell) for denial in outcome.denials]
    return facts


def _told(denial: Denial, cell: Cell) -> dict[str, str]:
    """Return a denial as results have it, with the option that would allow it, if one would."""
    facts = {"operation": denial.operation, "path": denial.path, "layer": denial.layer}
    is_of_files = denial.operation not in _NOT_OF_FILES and not denial.operation.startswith("socket.")
    flag = flag_for(denial.path, denial.wants, homes=cell.settings.homes) if is_of_files else None
    return facts if flag is None else {**facts, "flag": flag}


def _unavailable(error: SandboxError) -> CallError:
    if isinstance(error, LoadError):
        return CallError(Code.E_TOOL, f"The tool file cannot be loaded any more: {error}")
    if isinstance(error, NoProcess):
        return no_process(str(error))
    if isinstance(error, ForkserverDied):
        return lost(str(error))
    return CallError(
        Code.E_ISOLATION, f"No worker could be confined: {error}", details={"problem": str(error)}
    )
