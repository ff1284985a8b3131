"""One tool call, from its arguments to its contract value. Start reading here.

`execute` is the spine: `runner serve` and `runner call` both run it. Middleware does authentication
and request logging only. Other requests that reach author code (`resources/read`, `prompts/get`,
lists, completions) are calls too: `relay` runs each in a worker of its own that may write nothing.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from runner.artifacts.process import Processed, Stored, failed, process_artifacts
from runner.catalog import ToolSpec
from runner.cell import Access, Cell, Seat
from runner.contract.envelope import tool_not_found
from runner.contract.normalise import normalise
from runner.errors import CallError, Code
from runner.homes import HomeLease
from runner.identity import User
from runner.inputs import Inputs, prepare_inputs
from runner.ladder import CallListener, Client, widened
from runner.leftovers import Leftovers
from runner.request import VISIBILITY_SUFFIX, RequestFacts
from runner.telemetry import call_scope
from runner.verdict import judge
from sandbox.deadlines import Rung
from sandbox.errors import LoadError, SandboxError
from sandbox.outcome import Ending, Outcome

__all__ = ["Completed", "Request", "execute", "relay"]

log = logging.getLogger(__name__)

_QUESTION = ("resultType", "inputRequests", "requestState")


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
        id: Ours, on every log record of the call.
    """

    user: User
    method: str
    params: Mapping[str, Any]
    facts: RequestFacts
    client: Client
    inline_max_bytes: int
    levels: frozenset[str] = frozenset()
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])


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

    Never raises for what a caller or a tool did wrong: that is an error envelope in the result.

    Raises:
        WireError: The tool's server answered with a JSON-RPC error, which goes to the client as it is.
    """
    with call_scope(request.id):
        return await _execute(cell, request)


async def _execute(cell: Cell, request: Request) -> Completed:
    started = time.monotonic()
    name = str(request.params.get("name"))
    spec = cell.catalog.tools.get(name)
    listener = _listener(cell, request, name)
    try:
        if spec is None:
            raise tool_not_found(name, list(cell.catalog.tools))
        async with (
            cell.admission.admit(request.user.segment),
            cell.seat(request.user, Access.of(spec)) as seat,
        ):
            completed = await _run(cell, request, spec, seat, listener)
    except CallError as error:
        completed = Completed(processed=failed(error), wire={}, spec=spec)
    except SandboxError as error:
        completed = Completed(processed=failed(_unavailable(error)), wire={}, spec=spec)
    _log_call(request, name, completed, time.monotonic() - started)
    return completed


async def relay(cell: Cell, request: Request) -> Mapping[str, Any]:
    """Run any other request that reaches author code; return its wire result.

    Raises:
        WireError: The server answered with a JSON-RPC error.
        CallError: The worker did not answer.
    """
    listener = _listener(cell, request, None)
    try:
        async with (
            cell.admission.admit(request.user.segment),
            cell.seat(request.user, Access.NONE) as seat,
        ):
            outcome = await _lease(cell, request, request.params, seat, listener, tool=None)
    except SandboxError as error:
        raise _unavailable(error) from error
    return judge(outcome, listener, home=None, limits=cell.settings.limits())


async def _run(cell: Cell, request: Request, spec: ToolSpec, seat: Seat, listener: CallListener) -> Completed:
    """Steps 3 to 9 of a call: stage, run, end, normalise, collect, route."""
    home = seat.home if Access.of(spec) is Access.WRITE else None
    arguments = request.params.get("arguments") or {}
    staging = prepare_inputs(
        arguments if isinstance(arguments, Mapping) else {},
        spec=spec,
        user=request.user,
        home=seat.home,
        store=cell.store,
        claims=cell.settings.state_dir / "claims",
    )
    inputs: Inputs = await asyncio.to_thread(staging.__enter__)
    try:
        params = {**request.params, "arguments": inputs.arguments}
        outcome = await _lease(cell, request, params, seat, listener, tool=spec.name)
        wire = judge(
            outcome,
            listener,
            home=home.path if home is not None else None,
            unknown=inputs.unknown,
            nearest=lambda name: cell.store.nearest(request.user.name, name),
            limits=cell.settings.limits(spec.name),
        )
        if wire.get("resultType") == "input_required":
            # Only what the protocol says of a question: the rest would get past the contract.
            question = {key: wire[key] for key in _QUESTION if key in wire}
            return Completed(processed=Processed(value={}), wire=wire, spec=spec, interim=question)
        # The lease has ended, so no process of the call is alive to change what is read now.
        processed = await asyncio.to_thread(_collect, cell, request, wire, spec, home)
        return Completed(processed=_annotated(cell, processed, listener, outcome), wire=wire, spec=spec)
    finally:
        await asyncio.to_thread(staging.__exit__, None, None, None)


async def _lease(
    cell: Cell,
    request: Request,
    params: Mapping[str, Any],
    seat: Seat,
    listener: CallListener,
    *,
    tool: str | None,
) -> Outcome:
    """Lease a worker, run the request in it, and discard what an ended call left behind."""
    frame = {
        "method": request.method,
        "params": widened(params),
        "facts": asdict(request.facts),
        "known_state": cell.state.ending_in(request.user.segment, VISIBILITY_SUFFIX),
    }
    leftovers = await asyncio.to_thread(Leftovers.before, seat.home.fd) if seat.home is not None else None
    lease = await seat.pool.lease(cell.settings.limits(tool))
    outcome: Outcome | None = None
    try:
        outcome = await lease.run(frame, deadlines=listener.deadlines, listener=listener)
        if seat.home is not None:
            # Its outputs are read next, and nobody may be alive to change them then.
            await lease.buried()
    finally:
        # Partial results are discarded, but never beside another call, whose files they might be.
        ended = outcome is None or outcome.ending in (Ending.IDLE_TIMEOUT, Ending.TOTAL_TIMEOUT)
        if ended and leftovers is not None and seat.home is not None and seat.calls == 1:
            await asyncio.to_thread(leftovers.discard, seat.home.fd)
    if outcome.ending in (Ending.IDLE_TIMEOUT, Ending.TOTAL_TIMEOUT):
        await listener.rung(Rung.IDLE_END)
    for denial in outcome.denials:
        facts = {"operation": denial.operation, "path": denial.path, "layer": denial.layer}
        log.warning("denied", extra={"user": request.user.name, **facts})
    return outcome


def _listener(cell: Cell, request: Request, tool: str | None) -> CallListener:
    return CallListener(
        client=request.client,
        params=request.params,
        levels=request.levels,
        deadlines=cell.settings.deadlines(tool),
        user=request.user.segment,
        state=cell.state,
    )


def _collect(
    cell: Cell, request: Request, wire: Mapping[str, Any], spec: ToolSpec, home: HomeLease | None
) -> Processed:
    return process_artifacts(
        normalise(wire, wrapped=spec.wraps_result),
        home=home,
        inline_max_bytes=request.inline_max_bytes,
        max_bytes=cell.settings.max_artifact_bytes,
        keep=_keep(cell, request.user),
    )


def _keep(cell: Cell, user: User) -> Callable[..., Stored]:
    def keep(fd: int, *, name: str, mime: str) -> Stored:
        return cell.store.put_artifact(user.name, fd, name=name, mime=mime, now=datetime.now(UTC))

    return keep


def _annotated(cell: Cell, processed: Processed, listener: CallListener, outcome: Outcome) -> Processed:
    """Add to `meta_data` what happened on the way, if anything did."""
    facts: dict[str, Any] = {"isolation": "guard"} if cell.settings.isolation == "guard" else {}
    if listener.notices:
        facts["notices"] = list(listener.notices)
    if outcome.denials:
        facts["denials"] = [asdict(denial) for denial in outcome.denials]
    if facts:
        meta = processed.value.get("meta_data")
        processed.value["meta_data"] = {**(meta if isinstance(meta, Mapping) else {}), **facts}
    return processed


def _unavailable(error: SandboxError) -> CallError:
    if isinstance(error, LoadError):
        return CallError(Code.E_TOOL, f"The tool file cannot be loaded any more: {error}")
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
    log.info("call ended", extra=facts)
