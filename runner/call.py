"""One tool call, from its arguments to its contract value. Start reading here.

`execute` is the spine: `runner serve` and `runner call` both run it. Each function runs the one below it;
`conclude`, `_in_a_user_pool` and `perform` are given it as an argument:

    execute                      the call has its id, its deadlines, and somebody who hears of it
      conclude                   whatever happens becomes one end, which is logged, recorded and told of
        _allowed                 there is the tool, and its user may call it now
          _run_here              a server that is about to end takes no further call
            _in_a_user_pool      the user's turn in the queues, then a pool of workers bound to this user
              _with_files        where its inputs come from, and where its outputs go
                perform          inputs are staged; what the tool returns becomes a contract value
                  _in_a_worker   how the call ended in a worker is judged
                    run_in_lease   a worker is leased and runs the request; what a call that we ended has
                                   written is discarded

`conclude` and `perform` are in `runner.steps.execution`, since calls of other servers' tools take them too;
`run_in_lease` is in `runner.steps.leased_run`. In a fleet `_allowed` hands the call to a `RemoteExecutor`
instead, and the worker node that gets it enters with `execute_allowed`.

`ARCHITECTURE.md`, "One call, in order", has the steps with their errors. No middleware in front of it runs a
tool or reads what one returned. Other requests that reach author code (`resources/read`, `prompts/get`,
lists, completions) are calls too: `relay` runs each in a worker of its user, which may write nothing unless
all requests have a home (`homes_for = "all"`).
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from runner.artifacts.put_while_running import RunningPuts
from runner.contract.error_messages import lost, no_process, tool_not_found
from runner.errors import CallError, Code
from runner.homes.changes import Changes
from runner.homes.homes import HomeLease
from runner.steps.authorization import authorize, authorize_scopes, authorize_widget
from runner.steps.execution import (
    SHORT_BYTES,
    CallFiles,
    Completed,
    Executed,
    Request,
    conclude,
    file_delivery_of,
    listener_of,
    observed,
    perform,
)
from runner.steps.inputs import check_json
from runner.steps.leased_run import run_in_lease
from runner.steps.listener import CallListener, Nobody
from runner.steps.remote_executor import RemoteExecutor
from runner.steps.rewriting import Inputs
from runner.steps.timing import Steps
from runner.steps.told_denials import told_denial
from runner.steps.unreturned import left_by_others, left_of
from runner.steps.verdict import judge
from runner.system.logging_setup import CallScope
from runner.toolset.catalog import ToolSpec
from runner.toolset.toolset import Toolset
from runner.toolset.user_pool import HomeAccess, PoolKey, UserPool
from runner.users.identity import User
from runner.worker.wire import FIND_TOOL, LATEST_PROTOCOL, ROUTE, RequestFacts, WireError
from sandbox.errors import ForkserverDied, LoadError, NoProcess, SandboxError, ZygoteDied
from sandbox.host.lease import Lease
from sandbox.outcome import Outcome
from sandbox.policy import MIB

__all__ = [
    "Completed",
    "Request",
    "ask_route",
    "execute",
    "execute_allowed",
    "relay",
]

log = logging.getLogger(__name__)

R = TypeVar("R")

# How often a call that has not begun is tried anew, where the forkserver ends and ends. Where only its zygote
# ends it is tried once more, and no further.
_MAX_RESTARTS = 3


async def execute(toolset: Toolset, request: Request, remote: RemoteExecutor | None = None) -> Completed:
    """Run one `tools/call` from its arguments to its contract value.

    Never raises for what a caller, a tool or we did wrong: that is an error envelope in the result.

    Args:
        toolset: The tools.
        request: The call.
        remote: Where it is executed, if not on this machine.

    Raises:
        WireError: The tool's server answered with a JSON-RPC error, which goes to the client as it is.
    """
    with CallScope(request.id):
        request = observed(toolset, request)
        spec = toolset.catalog.tools.get(request.tool)
        listener = _listener(toolset, request, request.tool)
        act = partial(_allowed, toolset, request, spec, listener, remote)
        return await conclude(toolset, request, act, spec=spec, publish=listener.publish, through=WireError)


async def execute_allowed(toolset: Toolset, request: Request, listener: CallListener) -> Completed:
    """Run one `tools/call` that another machine has let in, which records its end and tells of it.

    Args:
        toolset: The tools.
        request: The call.
        listener: Who hears of it while it runs.

    Raises:
        CallError: It ended with an error.
        WireError: The tool's server answered with a JSON-RPC error.
    """
    with CallScope(request.id):
        spec, pool_key = await _current_spec(toolset, request, toolset.catalog.tools.get(request.tool))
        if spec is None:
            raise tool_not_found(request.tool, list(toolset.catalog.tools))
        check_json(request.params)
        return await _run_here(toolset, request, spec, listener, pool_key)


async def _allowed(
    toolset: Toolset,
    request: Request,
    spec: ToolSpec | None,
    listener: CallListener,
    remote: RemoteExecutor | None,
) -> Completed:
    """Execute a call if there is its tool, and its user may call that now.

    Whether there is may be for the user's worker to say; only of what there is it is asked who may call it.
    """
    name = request.tool
    spec, pool_key = await _current_spec(toolset, request, spec, remote)
    if spec is None:
        raise tool_not_found(name, list(toolset.catalog.tools))
    effective = toolset.effective(name)
    authorize_scopes(name, effective.scopes, request.facts)
    authorize(spec, request.facts)
    authorize_widget(name, spec.widgets, request.params)
    request = _with_limits(toolset, request, spec)
    if remote is not None:
        await remote.count(request.counted)
    else:
        # The tool may have been looked for in a worker: by now it is later than it was.
        toolset.rates.admit(request.counted, now=time.monotonic())
    # To read the request, to look at each argument, and what comes then, each take a turn of the event loop.
    await asyncio.sleep(0)
    check_json(request.params)
    await asyncio.sleep(0)
    if remote is None:
        return await _run_here(toolset, request, spec, listener, pool_key)
    async with toolset.drain.call(listener.tell), _place_here(toolset, request):
        return await remote.call(request, spec, listener, request.counted)


async def _run_here(
    toolset: Toolset, request: Request, spec: ToolSpec, listener: CallListener, pool_key: PoolKey | None
) -> Completed:
    """Execute an admitted call in a worker of this machine."""
    async with toolset.drain.call(listener.tell):
        return await _in_a_user_pool(
            toolset,
            request,
            # Worked out anew with each attempt: a reload may have changed the rights of the tool.
            lambda: pool_key or toolset.key(request.user, spec, links=_takes_links(toolset, spec)),
            partial(_with_files, toolset, request, spec, listener),
        )


async def _in_a_user_pool(
    toolset: Toolset,
    request: Request,
    key: Callable[[], PoolKey],
    act: Callable[[UserPool], Awaitable[R]],
) -> R:
    """Do what needs a worker when it is the user's turn; anew, if its zygote ends before it has begun.

    Raises:
        CallError: There is no worker for it.
    """
    user, restarts = request.user, _MAX_RESTARTS
    while True:
        try:
            async with toolset.admission.admit(user.segment, request.counted):
                with toolset.call_locks.calling(user.segment):
                    async with toolset.user_pool(user, key()) as user_pool:
                        return await act(user_pool)
        except SandboxError as error:
            if not (restarts and isinstance(error, ZygoteDied)):
                log.warning("no worker", extra={"problem": str(error)})
                raise _unavailable(error) from error
            # Perhaps for what another call of the user did, or with the forkserver. This one has not begun:
            # of a worker that ends in mid-call `run_in_lease` tells by its outcome.
            log.warning("a zygote ended before a call had its worker", extra={"user": user.name})
            restarts = restarts - 1 if isinstance(error, ForkserverDied) else 0


def _with_files(
    toolset: Toolset, request: Request, spec: ToolSpec, listener: CallListener, user_pool: UserPool
) -> Awaitable[Completed]:
    """Execute the tool in a worker of the user pool, by the steps that every call takes."""
    request.steps.done("admit")
    # Inputs are staged in a home that a tool may only read, too; only one that it may write has outputs.
    home = user_pool.home if toolset.access(spec) is HomeAccess.WRITE else None
    files = toolset.files(request.user, trace=request.id, counted=request.counted)
    links = user_pool.links or toolset.links
    puts = RunningPuts(files=files, home=home, max_bytes=toolset.settings.max_artifact_bytes)
    listener.keep = puts.put
    place = CallFiles(
        files=files,
        inputs=user_pool.home,
        outputs=home,
        link=lambda file: links.to(files.holder, file.id, name=file.shown),
        file_delivery=file_delivery_of(toolset.settings),
    )
    in_a_worker = partial(_in_a_worker, toolset, request, spec, user_pool, home, listener, puts)
    return perform(toolset, request, spec, place, listener, in_a_worker)


async def _in_a_worker(
    toolset: Toolset,
    request: Request,
    spec: ToolSpec,
    user_pool: UserPool,
    home: HomeLease | None,
    listener: CallListener,
    puts: RunningPuts,
    inputs: Inputs,
) -> Executed:
    """Execute a tool of ours; hold its worker until it is released.

    The worker is given back once: by whoever is done with what is returned, or here, if nothing is.
    """
    params = {**request.params, "arguments": inputs.arguments}
    changes = Changes() if home is not None else None
    try:
        lease, outcome = await run_in_lease(
            toolset, request, params, user_pool, listener, spec=spec, changes=changes
        )
        try:
            # Files that nobody named are told of by the call that ends last in the home, whosever they are.
            is_last = changes is not None and changes.end()
            left = left_of(toolset, request, spec, home, changes, puts, lease, is_last=is_last)
            try:
                wire = judge(
                    outcome,
                    listener,
                    home=home.path if home is not None else None,
                    unknown=inputs.unknown,
                    limits=toolset.effective(spec.name).limits,
                    homes=toolset.settings.homes,
                    unseen=toolset.unseen,
                )
            except CallError as error:
                if is_last and home is not None:
                    # Files that other calls have left for this one to tell of.
                    error.beside = await left_by_others(toolset, request, spec, home, lease)
                raise
            return Executed(
                wire=wire,
                is_long=outcome.answer_bytes > SHORT_BYTES,
                at_rest=lease.at_rest,
                facts=_noted(toolset, outcome),
                left=left,
                release=partial(_release, toolset, lease),
            )
        except BaseException:
            _release(toolset, lease)
            raise
    finally:
        if changes is not None:
            changes.close()


def _release(toolset: Toolset, lease: Lease) -> None:
    """Give a worker back; what it may go on with until its user's next call is watched."""
    job = lease.release()
    if job is not None:
        toolset.memory_guard.hold(job)


async def _current_spec(
    toolset: Toolset, request: Request, spec: ToolSpec | None, remote: RemoteExecutor | None = None
) -> tuple[ToolSpec | None, PoolKey | None]:
    """Return the tool as this user is offered it now, and the user pool whose worker alone has it so.

    A file may offer a session what it did not offer when it was loaded, and a call may change what the server
    in its own worker offers; the pool of that worker is set apart (decision 32). Only then is it asked, by a
    request that takes its turn like any other.
    """
    apart = toolset.apart(request.user)
    if spec is not None and (
        apart is None or apart == toolset.key(request.user, spec, links=_takes_links(toolset, spec))
    ):
        return spec, None
    found = await _spec_from_worker(toolset, request, remote)
    # One that is offered as it was loaded is so in any worker of the user.
    return (spec, None) if found == spec else (found, apart)


async def _spec_from_worker(
    toolset: Toolset, request: Request, remote: RemoteExecutor | None
) -> ToolSpec | None:
    """Look the tool up in the user's worker. Raises `CallError`: the worker cannot be reached."""
    params: dict[str, Any] = {"name": request.tool, "arguments": {}}
    if "_meta" in request.params:
        params["_meta"] = request.params["_meta"]
    asking = replace(request, method=FIND_TOOL, params=params, steps=Steps())
    try:
        answer = await relay(toolset, asking, remote)
    except WireError:
        return None
    try:
        (tool,) = answer["tools"]
        return ToolSpec.of(tool, identity=toolset.settings.username_parameter)
    except (AttributeError, KeyError, TypeError, ValueError):
        # There is none, or what a worker calls one is none.
        return None


async def relay(
    toolset: Toolset,
    request: Request,
    remote: RemoteExecutor | None = None,
    *,
    listener: CallListener | None = None,
) -> Mapping[str, Any]:
    """Run any other request that reaches author code; return its wire result.

    Args:
        toolset: The tools.
        request: The request.
        remote: Where it is executed, if not on this machine.
        listener: Who hears of it while it runs, if not its client alone.

    Raises:
        WireError: The server answered with a JSON-RPC error.
        CallError: The worker did not answer, or could not be asked.
    """
    check_json(request.params)
    # It looks at each of them, and so does what comes now.
    await asyncio.sleep(0)
    listener = listener or _listener(toolset, request, None)
    request, user = _with_limits(toolset, request, None), request.user
    if remote is not None:
        async with toolset.drain.call(listener.tell, of_tool=False), _place_here(toolset, request):
            return await remote.relay(request, listener, request.counted)
    async with toolset.drain.call(listener.tell, of_tool=False):
        outcome = await _in_a_user_pool(
            toolset,
            request,
            lambda: toolset.apart(user) or toolset.key(user),
            partial(_relayed, toolset, request, listener),
        )
    return judge(
        outcome,
        listener,
        home=None,
        limits=toolset.effective().limits,
        homes=toolset.settings.homes,
        unseen=toolset.unseen,
    )


async def ask_route(
    toolset: Toolset, remote: RemoteExecutor | None, user: User, asked: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Answer an HTTP request by a route of the file, in a worker of the user.

    Args:
        toolset: The tools.
        remote: Where it is executed, if not on this machine.
        user: Who asks.
        asked: The request.

    Raises:
        WireError: The server answered with a JSON-RPC error, which it does not.
        CallError: The worker did not answer, or could not be asked.
    """
    facts = RequestFacts(
        request_id=None, protocol=LATEST_PROTOCOL, session_id=user.session or "", transport="streamable-http"
    )
    request = Request(user=user, method=ROUTE, params=asked, facts=facts, client=Nobody(), inline_max_bytes=0)
    return await relay(toolset, request, remote)


async def _relayed(
    toolset: Toolset, request: Request, listener: CallListener, user_pool: UserPool
) -> Outcome:
    """Run the request in a worker of the user pool, and release it: nothing of it is read any more."""
    request.steps.done("admit")
    lease, outcome = await run_in_lease(toolset, request, request.params, user_pool, listener, spec=None)
    _release(toolset, lease)
    return outcome


@contextlib.asynccontextmanager
async def _place_here(toolset: Toolset, request: Request) -> AsyncIterator[None]:
    """Hold a place of this host for a request that is executed elsewhere, whose user's session goes on."""
    async with (
        toolset.admission.admit(request.user.segment, request.counted),
        toolset.upkeep.in_use(request.user),
    ):
        request.steps.done("admit")
        yield


def _with_limits(toolset: Toolset, request: Request, spec: ToolSpec | None) -> Request:
    """Return a request with the limits by name that it counts for; without a tool those of all tools."""
    # Most servers have none.
    if not toolset.rates.limits:
        return request
    tool = None if spec is None else spec.name
    mine = toolset.rates.of(
        tool=tool,
        user=request.user.name,
        whose=request.user.segment,
        memory_mb=lambda: toolset.effective(tool).limits.call_memory_bytes // MIB,
    )
    return replace(request, counted=mine) if mine else request


def _takes_links(toolset: Toolset, spec: ToolSpec) -> bool:
    """Return whether a call of this tool may be given links, and so must be able to fetch them."""
    return spec.takes_links or (toolset.settings.file_delivery == "url" and spec.takes_files)


def _listener(toolset: Toolset, request: Request, tool: str | None) -> CallListener:
    return listener_of(toolset, request, tool, toolset.effective(tool).deadlines)


def _noted(toolset: Toolset, outcome: Outcome) -> dict[str, Any]:
    """Return what is noted in `meta_data` of how a worker fared, if anything is."""
    facts: dict[str, Any] = {"isolation": "guard"} if toolset.settings.isolation == "guard" else {}
    if outcome.denials:
        facts["denials"] = [told_denial(denial, toolset) for denial in outcome.denials]
    return facts


def _unavailable(error: SandboxError) -> CallError:
    """Return the error of a call that had no worker."""
    if isinstance(error, LoadError):
        return CallError(Code.E_TOOL, f"The tool file cannot be loaded any more: {error}")
    if isinstance(error, NoProcess):
        return no_process(str(error))
    if isinstance(error, ZygoteDied):
        return lost(str(error))
    return CallError(
        Code.E_ISOLATION, f"No worker could be confined: {error}", details={"problem": str(error)}
    )
