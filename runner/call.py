"""One tool call, from its arguments to its contract value. Start reading here.

`execute` is the spine: `runner serve` and `runner call` both run it. Middleware does authentication
and request logging only. Other requests that reach author code (`resources/read`, `prompts/get`,
lists, completions) are calls too: `relay` runs each in a worker of its own that may write nothing.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ParamSpec, TypeVar

from runner.artifacts.generated import Generated, keep_generated, not_returned
from runner.artifacts.process import Keep, Processed, failed, process_artifacts
from runner.authorization import authorize, authorize_widget
from runner.catalog import ToolSpec
from runner.cell import Cell
from runner.changes import Change, Changes
from runner.contract.announce import announce
from runner.contract.display import decide
from runner.contract.envelope import file_not_found, lost, no_process, tool_not_found
from runner.contract.normalise import Normalised, normalise
from runner.errors import CallError, Code
from runner.events import LIST_CHANGED, UPDATED
from runner.homes import HomeLease
from runner.identity import User
from runner.inputs import check_json, prepare_inputs, read_arguments
from runner.ladder import CallListener, Client, Nobody, widened
from runner.last_resort import unexpected
from runner.leftovers import Leftovers
from runner.lendable import flag_for
from runner.links import without_tokens
from runner.my_files import Deferral, MyFiles
from runner.puts import Puts
from runner.render import referenced
from runner.request import FIND_TOOL, LATEST_PROTOCOL, ROUTE, VISIBILITY_SUFFIX, RequestFacts, WireError
from runner.seat import Access, Seat, SeatKey
from runner.steps import Steps, wants_report
from runner.store.protocol import Origin, Record
from runner.telemetry import CallScope
from runner.verdict import judge
from sandbox.deadlines import Deadlines, Rung
from sandbox.errors import ForkserverDied, LoadError, NoProcess, SandboxError, ZygoteDied
from sandbox.lease import Lease
from sandbox.outcome import Denial, Ending, Outcome

__all__ = ["Completed", "Request", "ask_route", "execute", "relay"]

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

_NOT_OF_FILES = ("run", "connect", "lookup")
_QUESTION = ("resultType", "inputRequests", "requestState")
_FILES = ("artifacts", "deferred_artifacts")
# A call that we have ended.
_ENDED = (Ending.IDLE_TIMEOUT, Ending.TOTAL_TIMEOUT, Ending.OVER_LIMIT)
# What is longer is worth a thread, so that it holds up no other call.
_SHORT_BYTES = 64 * 1024
_LAST_NOTICE_S = 1.0
# How often a call that has not begun is tried anew, where the forkserver ends and ends.
_ANEW = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One MCP request as it reached the host.

    Attributes:
        user: Who it comes from.
        method: The MCP method.
        params: Its params, as on the wire.
        facts: What the tool may learn of it.
        client: Who hears of it while it runs.
        levels: Levels of log messages that the client wants to get.
        inline_max_bytes: Largest artifact that the caller wants inside the result.
        is_awaited: Whether its client waits for the answer: then silence ends the call.
        id: Ours, on every log record of the call.
        steps: How long each step took.
    """

    user: User
    method: str
    params: Mapping[str, Any]
    facts: RequestFacts
    client: Client
    inline_max_bytes: int
    levels: frozenset[str] = frozenset()
    is_awaited: bool = True
    id: str = field(default_factory=lambda: os.urandom(6).hex())
    steps: Steps = field(default_factory=Steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """How a tool call ended.

    Attributes:
        processed: The contract value and its files.
        wire: The tool's own result as FastMCP put it on the wire; empty where there is none.
        spec: The tool, if it is known.
        interim: An `input_required` result, which goes to the client untouched.
    """

    processed: Processed
    wire: Mapping[str, Any]
    spec: ToolSpec | None
    interim: Mapping[str, Any] | None = None


async def execute(cell: Cell, request: Request) -> Completed:
    """Run one `tools/call` from identity to contract value.

    Never raises for what a caller, a tool or we did wrong: that is an error envelope in the result.

    Raises:
        WireError: The tool's server answered with a JSON-RPC error, which goes to the client as it is.
    """
    with CallScope(request.id):
        return await _execute(cell, request)


async def _execute(cell: Cell, request: Request) -> Completed:
    started = time.monotonic()
    name = str(request.params.get("name"))
    spec = cell.catalog.tools.get(name)
    listener = _listener(cell, request, name)
    try:
        completed = await _admitted(cell, request, spec, listener, now=started)
    except WireError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an error of the contract
        said = without_tokens(error.answer) if isinstance(error, CallError) and error.answer else {}
        completed = Completed(processed=await _failure(cell, request, error), wire=said, spec=spec)
    _announce(cell, request, completed, listener)
    _log_call(request, name, completed, time.monotonic() - started)
    return completed


async def _admitted(
    cell: Cell, request: Request, spec: ToolSpec | None, listener: CallListener, *, now: float
) -> Completed:
    name = str(request.params.get("name"))
    spec, at = await _offered(cell, request, spec)
    if spec is None:
        raise tool_not_found(name, list(cell.catalog.tools))
    authorize(spec, request.facts)
    authorize_widget(name, spec.widgets, request.params)
    most = cell.terms(name).calls_per_minute
    cell.throttle.admit(request.user.segment, name, most=most, now=now)
    check_json(request.params)
    async with cell.drain.call(listener.tell):
        return await _begun(partial(_in_a_seat, cell, request, spec, listener, at), request.user)


async def _failure(cell: Cell, request: Request, error: Exception) -> Processed:
    if isinstance(error, CallError):
        return _without_tokens(failed(await _with_nearest_names(cell, request, error)))
    if isinstance(error, SandboxError):
        log.warning("no worker", extra={"problem": str(error)})
        return failed(_unavailable(error))
    return failed(unexpected(error, call=request.id))


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
    name = str(request.params.get("name"))
    params = {"name": name, "arguments": {}}
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
    links = _takes_links(cell, spec)
    async with (
        cell.admission.admit(request.user.segment),
        _entered(cell.call_locks.calling(request.user.segment)),
        cell.seat(request.user, cell.access(spec), links=links, tool=spec.name, at=at) as seat,
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
    async with (
        cell.admission.admit(request.user.segment),
        _entered(cell.call_locks.calling(request.user.segment)),
        cell.seat(request.user, cell.access(), at=cell.apart(request.user)) as seat,
    ):
        lease, outcome = await _lease(cell, request, request.params, seat, listener, spec=None)
        _release(cell, lease)
        return outcome


async def _run(cell: Cell, request: Request, spec: ToolSpec, seat: Seat, listener: CallListener) -> Completed:
    """Steps 3 to 9 of a call: stage, run, end, normalise, collect, route."""
    home = seat.home if cell.access(spec) is Access.WRITE else None
    files = cell.files(request.user, trace=request.id)
    staging = prepare_inputs(
        read_arguments(request.params.get("arguments")),
        spec=spec,
        user=request.user,
        home=seat.home,
        files=files,
        claims=cell.claims,
        link=lambda file: (seat.links or cell.links).to(files.holder, file.id),
        file_delivery="url" if cell.settings.file_delivery == "url" else "path",
    )
    most, total = cell.settings.max_artifact_bytes, cell.settings.max_call_bytes
    puts = Puts(files=files, home=home, max_bytes=most, total_max_bytes=total)
    listener.keep = puts.put
    changes = Changes(further=cell.settings.generated_except) if home is not None else None
    async with staging as inputs:
        if cell.events.heard(user=request.user.segment, session=request.facts.session_id):
            listener.publish({"type": "tool_start", "arguments": inputs.shown()})
        params = {**request.params, "arguments": inputs.arguments}
        request.steps.done("stage")
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
            if wire.get("resultType") == "input_required":
                # Only what the protocol says of a question: the rest would get past the contract.
                question = {key: wire[key] for key in _QUESTION if key in wire}
                return Completed(processed=Processed(value={}), wire=wire, spec=spec, interim=question)
            read = _at_once if outcome.answer_bytes <= _SHORT_BYTES else asyncio.to_thread
            normalised = await read(_normalise, cell, wire, spec)
            left = _left(cell, normalised, spec, home, changes, puts) if is_last else []
            if left or any(normalised.value.get(key) for key in _FILES):
                # Outputs are read now, and no process of the call may go on to change them.
                request.steps.done("normalise")
                await lease.at_rest()
                request.steps.done("end")
            processed = await _collect(cell, request, normalised, home, files)
            if left and home is not None and changes is not None:
                rules = _generated(cell, spec, home, files, lease)
                processed = await keep_generated(processed, left, rules, beyond=changes.beyond)
        finally:
            _release(cell, lease)
        request.steps.done("collect")
        return Completed(processed=_annotated(cell, processed, listener, outcome), wire=wire, spec=spec)


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


async def _at_once(act: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    return act(*args, **kwargs)


def _listener(cell: Cell, request: Request, tool: str | None) -> CallListener:
    return CallListener(
        client=request.client,
        params=request.params,
        levels=request.levels,
        deadlines=_deadlines(cell, request, tool),
        user=request.user.segment,
        state=cell.state,
        publish=_publisher(cell, request, tool),
        change=partial(_changed, cell, request),
    )


def _deadlines(cell: Cell, request: Request, tool: str | None) -> Deadlines:
    deadlines = cell.terms(tool).deadlines
    return deadlines if request.is_awaited else replace(deadlines, idle_s=deadlines.total_s)


def _changed(cell: Cell, request: Request, method: str, uri: object) -> None:
    """Tell the user's clients that listen for changes of what has changed by a call."""
    kind = method.removeprefix("notifications/").removesuffix("/list_changed")
    user, session = request.user.segment, request.user.session
    if kind in ("tools", "prompts", "resources"):
        cell.events.publish({"type": LIST_CHANGED, "list": kind}, user=user, session=session)
    elif kind == "resources/updated" and isinstance(uri, str):
        cell.events.publish({"type": UPDATED, "uri": uri}, user=user, session=session)


def _publisher(cell: Cell, request: Request, tool: str | None) -> Callable[[Mapping[str, Any]], None]:
    user, session = request.user.segment, request.facts.session_id

    def publish(event: Mapping[str, Any]) -> None:
        cell.events.publish({**event, "call": request.id, "tool": tool}, user=user, session=session)

    return publish


def _announce(cell: Cell, request: Request, completed: Completed, listener: CallListener) -> None:
    """Tell the user's interface of the files of a result, if one listens."""
    if not cell.events.heard(user=request.user.segment, session=request.facts.session_id):
        return
    value = referenced(completed.processed)
    for event in announce(value, decide(value, allowed_origins=cell.settings.iframe_origins)):
        listener.publish(event)


def _normalise(cell: Cell, wire: Mapping[str, Any], spec: ToolSpec) -> Normalised:
    return normalise(wire, wrapped=spec.wraps_result, results_max_bytes=cell.settings.results_max_bytes)


async def _collect(
    cell: Cell, request: Request, normalised: Normalised, home: HomeLease | None, files: MyFiles
) -> Processed:
    return await process_artifacts(
        normalised,
        home=home,
        inline_max_bytes=request.inline_max_bytes,
        max_bytes=cell.settings.max_artifact_bytes,
        total_max_bytes=cell.settings.max_call_bytes,
        keep=_keep(files),
    )


def _left(
    cell: Cell,
    normalised: Normalised,
    spec: ToolSpec,
    home: HomeLease | None,
    changes: Changes | None,
    puts: Puts,
) -> list[Change]:
    """Return the files that a call has changed in its home and does not return, if anybody wants to know."""
    if home is None or changes is None or not changes.found:
        return []
    if cell.settings.generated_by(spec.name, wish=spec.generated) == "ignore":
        return []
    return not_returned(changes.found, normalised, home, put=puts.kept)


def _generated(cell: Cell, spec: ToolSpec, home: HomeLease, files: MyFiles, lease: Lease) -> Generated:
    mode = cell.settings.generated_by(spec.name, wish=spec.generated)
    return Generated(
        mode="report" if mode == "report" else "keep",
        home=home,
        files=files,
        max_bytes=cell.settings.max_artifact_bytes,
        total_max_bytes=cell.settings.max_call_bytes,
        why_not="job_goes_on" if lease.worker.goes_on or cell.has_jobs(home.segment) else None,
    )


def _keep(files: MyFiles) -> Keep:
    async def keep(fd: int, *, name: str, mime: str, deferral: Deferral | None, temporary: bool) -> Record:
        origin = Origin.GENERATED if deferral is None else Origin.DEFERRED
        return await files.put(
            fd, name=name, mime=mime, origin=origin, deferral=deferral, temporary=temporary
        )

    return keep


def _without_tokens(processed: Processed) -> Processed:
    """Take the tokens out of what a tool said of links that it was given, as it failed."""
    return replace(processed, value=without_tokens(processed.value))


async def _with_nearest_names(cell: Cell, request: Request, error: CallError) -> CallError:
    """Return an error that says, where a file was not found, which of the user's have a name like it."""
    if error.code is not Code.E_FILE_NOT_FOUND:
        return error
    name = str(error.details.get("name"))
    try:
        return file_not_found(name, await cell.files(request.user).nearest(name))
    except Exception as fault:
        log.warning("no names like it", exc_info=fault)
        return error


def _annotated(cell: Cell, processed: Processed, listener: CallListener, outcome: Outcome) -> Processed:
    """Add to `meta_data` what happened on the way, if anything did."""
    facts: dict[str, Any] = {"isolation": "guard"} if cell.settings.isolation == "guard" else {}
    if listener.notices:
        facts["notices"] = list(listener.notices)
    if outcome.denials:
        facts["denials"] = [_told(denial, cell) for denial in outcome.denials]
    if facts:
        meta = processed.value.get("meta_data")
        processed.value["meta_data"] = {**(meta if isinstance(meta, Mapping) else {}), **facts}
    return processed


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


def _log_call(request: Request, tool: str, completed: Completed, elapsed_s: float) -> None:
    failure = completed.processed.failure
    facts = {
        "user": request.user.name,
        "tool": tool,
        "elapsed_ms": round(elapsed_s * 1000, 1),
        "outcome": failure.code.name if failure is not None else "ok",
        "files": len(completed.processed.files),
    }
    # Once the answer is on its way: nobody waits for a line of the log.
    asyncio.get_running_loop().call_soon(partial(log.info, "call ended", extra=facts))
