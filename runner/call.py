"""Tool calls of our own files, and other requests that reach author code. Start reading here.

`execute` is the entry point for `runner serve`, `runner call` and the API. It runs a `FileCall`:

    FileCall.run            every result or error becomes the end of the call, recorded and published
      execute               the tool is found, and the call authorised
        execute_admitted    the call is drained with the server
          in_user_pool      the user's turn in the queues; again, if the pool ends before the call starts
            _in_pool        inputs are staged; a worker is leased and runs the request (`run_in_lease`); its
                            outcome is judged; the result becomes a contract value

`run`, `staged` and `collected` are in `runner.steps.call`, since calls of other servers' tools share them.
In a fleet, `Toolset.fleet` takes over within `execute_admitted`: it sends the call to a worker node, whose
entry point is the function of that name.

`ARCHITECTURE.md`, "One call, in order", has the steps with their errors. No middleware in front of it runs a
tool or reads a result. Other requests that reach author code (`resources/read`, `prompts/get`, lists,
completions) are calls too: `relay` runs each in a worker of its user, which may write nothing unless all
requests have a home (`homes_for = "all"`).
"""

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeVar

from runner.artifacts.put_while_running import RunningPuts
from runner.contract.error_messages import lost, no_process, tool_not_found
from runner.contract.jsonable import list_of, mapping_of
from runner.errors import CallError, Code
from runner.formats.json_walks import least_chars
from runner.steps.authorization import authorize, authorize_scopes, authorize_widget, callable_tools
from runner.steps.call import Call, listener_of, observed
from runner.steps.inputs import check_json
from runner.steps.leased_run import run_in_lease
from runner.steps.listener import CallListener, Nobody
from runner.steps.request import SHORT_BYTES, CallFiles, Completed, Executed, Request, Steps
from runner.steps.unreturned import left_by_others, left_of
from runner.steps.verdict import denial_facts, judge
from runner.system.logging_setup import CallScope
from runner.system.turns import turn
from runner.toolset.catalog import ToolSpec
from runner.toolset.toolset import Toolset
from runner.toolset.user_pool import HomeAccess, PoolKey, UserPool
from runner.users.identity import User
from runner.worker.wire import FIND_TOOL, LATEST_PROTOCOL, ROUTE, RequestFacts, WireError
from sandbox.errors import ForkserverDied, LoadError, NoProcess, SandboxError, ZygoteDied
from sandbox.host.lease import Lease
from sandbox.outcome import Outcome

__all__ = [
    "Completed",
    "Request",
    "ask_route",
    "execute",
    "execute_admitted",
    "own_request",
    "relay",
]

log = logging.getLogger(__name__)

R = TypeVar("R")

# Retries of a call that has not started while the forkserver keeps exiting. If only its zygote exits, the
# call is retried once.
_MAX_RESTARTS = 3


def own_request(
    toolset: Toolset, user: User, method: str, params: Mapping[str, Any], *, client: str = "runner"
) -> Request:
    """Return a request as a client of the newest protocol sends it, without capabilities."""
    info = {"name": client, "version": "1"}
    envelope = {"protocolVersion": LATEST_PROTOCOL, "clientInfo": info, "clientCapabilities": {}}
    meta = {f"io.modelcontextprotocol/{key}": value for key, value in envelope.items()}
    facts = RequestFacts(
        request_id=1,
        protocol=LATEST_PROTOCOL,
        session_id=user.session or client,
        transport="stdio",
        client_info=info,
        client_capabilities={},
    )
    return Request(
        user=user,
        method=method,
        params={**params, "_meta": meta},
        facts=facts,
        client=Nobody(),
        inline_max_bytes=toolset.settings.inline_max_bytes,
    )


async def execute(toolset: Toolset, request: Request) -> Completed:
    """Run one `tools/call` from its arguments to its contract value.

    Faults of the caller, the tool or the runner are not raised: they are error envelopes in the result.

    Args:
        toolset: The tools.
        request: The call.

    Raises:
        WireError: The tool's server answered with a JSON-RPC error, which is sent to the client unchanged.
    """
    with CallScope(request.id):
        request = observed(toolset, request)
        deadlines = toolset.effective(request.tool).deadlines
        listener = listener_of(toolset, request, request.tool, deadlines)
        return await _call_of(toolset, request, listener).run()


async def execute_admitted(toolset: Toolset, request: Request, listener: CallListener) -> Completed:
    """Run one `tools/call` that another machine has admitted, which records its end.

    Args:
        toolset: The tools.
        request: The call.
        listener: Receives notifications and requests while it runs.

    Raises:
        CallError: It ended with an error.
        WireError: The tool's server answered with a JSON-RPC error.
    """
    with CallScope(request.id):
        call = _call_of(toolset, request, listener)
        spec = await call.find_tool()
        if toolset.rates.limits:
            call.count(spec)
        await _check(call.request)
        return await call.execute_admitted(spec)


@dataclass(slots=True, kw_only=True, eq=False)
class FileCall(Call):
    """A call of a tool of our own files, executed by a worker of this machine or of a fleet.

    Attributes:
        toolset: The tools.
    """

    toolset: Toolset
    _pool_key: PoolKey | None = None

    passed_on: ClassVar[type[Exception]] = WireError

    async def execute(self) -> Completed:
        """Authorise, count and execute the call.

        The tool is looked up in the user's worker before the call is authorised.
        """
        toolset, facts = self.toolset, self.request.facts
        spec = await self.find_tool()
        effective = toolset.effective(spec.name)
        # Most tools ask for neither.
        if effective.scopes:
            authorize_scopes(spec.name, effective.scopes, facts)
        if spec.security:
            authorize(spec, facts)
        authorize_widget(spec.name, spec.widgets, self.request.params)
        # Nor do most servers have limits by name, or rules that hold a call.
        if toolset.rates.limits:
            self.count(spec)
        await _check(self.request)
        if not toolset.settings.approvals:
            return await self.execute_admitted(spec)
        return await self.when_approved(
            partial(self.execute_admitted, spec),
            places=lambda: toolset.places,
            may_destroy=toolset.approvals.is_destructive("", spec.name, now=spec.widgets.may_destroy),
        )

    def count(self, spec: ToolSpec) -> None:
        """Count the call towards the named limits of this server.

        Raises:
            CallError: `E_BUSY`: a rate limit is reached.
        """
        self.request = _with_limits(self.toolset, self.request, spec)
        # Not the time of arrival: looking up the tool in a worker may have taken a while.
        self.toolset.rates.admit(self.request.counted, now=time.monotonic())

    async def execute_admitted(self, spec: ToolSpec) -> Completed:
        """Execute the call here or, from staging to routing, at a node, unless the server is about to end."""
        toolset, user = self.toolset, self.request.user
        async with toolset.drain.call(self.listener.tell):
            if toolset.fleet is not None:
                async with _place_here(toolset, self.request):
                    completed: Completed = await toolset.fleet.call(self.request, spec, self.listener)
                    return completed
            return await _in_user_pool(
                toolset,
                self.request,
                # Computed again for each attempt: a reload may have changed the rights of the tool.
                lambda: self._pool_key or toolset.key(user, spec),
                partial(self._in_pool, spec),
            )

    async def find_tool(self) -> ToolSpec:
        """Return the current tool of that name for this user.

        The tools of a session may differ from those of the loaded file. A call may change the tools of the
        server in its own worker; the pool of that worker is set apart (decision 32). Only then is the worker
        queried, by a request that takes its turn like any other.

        Raises:
            CallError: There is no such tool, or the worker cannot be queried.
        """
        toolset, request, loaded = self.toolset, self.request, self.spec
        apart = toolset.apart(request.user)
        if loaded is not None and (apart is None or apart == toolset.key(request.user, loaded)):
            return loaded
        self.spec = await _spec_from_worker(toolset, request)
        if self.spec is None:
            raise tool_not_found(request.tool, await _listed_names(toolset, request))
        # The list of a session can differ from that of the file: a tool is destructive if either marks it,
        # also for rules that a reload adds.
        toolset.approvals.is_destructive("", self.spec.name, now=self.spec.widgets.may_destroy)
        # A tool that is unchanged since loading can run in any worker of the user.
        self._pool_key = None if self.spec == loaded else apart
        return self.spec

    async def _in_pool(self, spec: ToolSpec, user_pool: UserPool) -> Completed:
        """Stage the inputs, run the tool in a worker of the pool, and collect what it returned."""
        toolset, request, settings = self.toolset, self.request, self.toolset.settings
        request.steps.done("admit")
        files = toolset.files(request.user, trace=request.id)
        links = user_pool.links or toolset.links
        access = HomeAccess.of(spec, homes_for=settings.homes_for)
        place = CallFiles(
            files=files,
            # Inputs are staged even if the tool may only read its home; outputs need a writable one.
            inputs=user_pool.home,
            outputs=user_pool.home if access is HomeAccess.WRITE else None,
            link=lambda file: links.to(files.holder, file.id, name=file.shown),
            file_delivery=settings.file_delivery,
        )
        home = user_pool.home if place.outputs is not None else None
        most = settings.max_artifact_bytes
        puts = RunningPuts(files=files, home=home, max_bytes=most, logs=request.steps.logs)
        self.listener.keep = puts.put
        async with self.staged(spec, place) as inputs:
            params = {**request.params, "arguments": inputs.arguments}
            changes = None if home is None else toolset.changes.begin(home.segment, home.fd)
            try:
                lease, outcome = await run_in_lease(
                    toolset, request, params, user_pool, self.listener, spec=spec, changes=changes
                )
            except BaseException:
                if changes is not None:
                    changes.end()
                raise
            # The worker is held until its outputs are read.
            try:
                # Unreturned files are listed by the call that ends last in the home.
                is_last = changes is not None and changes.end()
                unreturned = (
                    left_of(toolset, request, spec, home, changes, puts, lease, is_last=is_last)
                    if home is not None and changes is not None
                    else None
                )
                try:
                    wire = judge(
                        outcome,
                        self.listener,
                        home=home.path if home is not None else None,
                        unknown=inputs.unknown,
                        limits=toolset.effective(spec.name).limits,
                        homes=settings.homes,
                        unseen=toolset.unseen,
                        rights=partial(settings.rights, spec.name),
                    )
                except CallError as error:
                    if is_last and home is not None and changes is not None:
                        # Files that other calls have left for this one to list.
                        error.beside = await left_by_others(toolset, request, spec, home, changes, lease)
                    raise
                facts: dict[str, Any] = {"isolation": "guard"} if settings.isolation == "guard" else {}
                if outcome.denials:
                    facts["denials"] = [denial_facts(denial, settings.homes) for denial in outcome.denials]
                executed = Executed(
                    wire=wire,
                    is_long=outcome.answer_bytes > SHORT_BYTES,
                    quiesce=lease.at_rest,
                    facts=facts,
                    unreturned=unreturned,
                )
                return await self.collected(spec, place, executed)
            finally:
                _release(toolset, lease)


def _call_of(toolset: Toolset, request: Request, listener: CallListener) -> FileCall:
    """Return a call of a tool, described as when its file was loaded."""
    spec = toolset.catalog.tools.get(request.tool)
    return FileCall(service=toolset, toolset=toolset, request=request, listener=listener, spec=spec)


async def _spec_from_worker(toolset: Toolset, request: Request) -> ToolSpec | None:
    """Return the tool from the list of the user's worker; None if there is none of that name.

    Raises:
        CallError: The worker cannot be queried.
    """
    params: dict[str, Any] = {"name": request.tool, "arguments": {}}
    if "_meta" in request.params:
        params["_meta"] = request.params["_meta"]
    try:
        found = replace(request, method=FIND_TOOL, params=params, steps=Steps())
        answer = await relay(toolset, found)
    except WireError:
        return None
    try:
        (tool,) = answer["tools"]
        return ToolSpec.of(tool, identity=toolset.settings.username_parameter)
    except (AttributeError, KeyError, TypeError, ValueError):
        # No such tool, or an entry that is not a tool.
        return None


async def _listed_names(toolset: Toolset, request: Request) -> list[str] | None:
    """Return the names of the tools that the caller gets in a list, None if the worker cannot be queried.

    The catalog also has tools that the file's middleware, or a setting, hides from the caller.
    """
    params = {key: item for key, item in request.params.items() if key == "_meta"}
    try:
        listing = replace(request, method="tools/list", params=params, client=Nobody(), steps=Steps())
        answer = await relay(toolset, listing)
    except (CallError, WireError):
        return None
    tools = list_of(callable_tools(answer, toolset.settings.scopes, request.facts).get("tools"))
    return [name for tool in tools if isinstance(name := mapping_of(tool).get("name"), str)]


async def _in_user_pool(
    toolset: Toolset,
    request: Request,
    key: Callable[[], PoolKey],
    act: Callable[[UserPool], Awaitable[R]],
) -> R:
    """Run `act` with a user pool when it is the user's turn; retry if the zygote exits before it starts.

    Raises:
        CallError: There is no worker for it.
    """
    user, restarts = request.user, _MAX_RESTARTS
    while True:
        try:
            async with toolset.user_pool(user, key, request.counted) as user_pool:
                return await act(user_pool)
        except SandboxError as error:
            if not (restarts and isinstance(error, ZygoteDied)):
                log.warning("no worker", extra={"problem": str(error)})
                raise _unavailable(error) from error
            # Perhaps because of another call of the user, or of the forkserver. This call has not started:
            # for a worker that exits during a call, `run_in_lease` returns an outcome.
            log.warning("zygote exited before fork", extra={"user": user.name})
            restarts = restarts - 1 if isinstance(error, ForkserverDied) else 0


def _release(toolset: Toolset, lease: Lease) -> None:
    """Release a worker; watch any job that it continues until its user's next call."""
    job = lease.release()
    if job is not None:
        toolset.memory_guard.hold(job)


async def relay(
    toolset: Toolset, request: Request, *, listener: CallListener | None = None
) -> Mapping[str, Any]:
    """Run any other request that reaches author code; return its wire result.

    Args:
        toolset: The tools.
        request: The request.
        listener: Receives notifications and requests while it runs; by default, one for its client.

    Raises:
        WireError: The server answered with a JSON-RPC error.
        CallError: The worker did not answer, or was not available.
    """
    await _check(request)
    listener = listener or listener_of(toolset, request, None, toolset.effective().deadlines)
    request, user = _with_limits(toolset, request, None), request.user
    async with toolset.drain.call(listener.tell, of_tool=False):
        if toolset.fleet is not None:
            async with _place_here(toolset, request):
                return await toolset.fleet.relay(request, listener)
        outcome = await _in_user_pool(
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


async def ask_route(toolset: Toolset, user: User, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer an HTTP request by a route of the file, in a worker of the user.

    Args:
        toolset: The tools.
        user: The caller.
        params: The request.

    Raises:
        WireError: The server answered with a JSON-RPC error, which is not expected.
        CallError: The worker did not answer, or was not available.
    """
    facts = RequestFacts(
        request_id=None, protocol=LATEST_PROTOCOL, session_id=user.session or "", transport="streamable-http"
    )
    request = Request(
        user=user, method=ROUTE, params=params, facts=facts, client=Nobody(), inline_max_bytes=0
    )
    return await relay(toolset, request)


async def _relayed(
    toolset: Toolset, request: Request, listener: CallListener, user_pool: UserPool
) -> Outcome:
    """Run the request in a worker of the user pool, and release the worker: its files are not read."""
    request.steps.done("admit")
    lease, outcome = await run_in_lease(toolset, request, request.params, user_pool, listener, spec=None)
    _release(toolset, lease)
    return outcome


async def _check(request: Request) -> None:
    """Check the params of a request; long ones in a turn of the event loop of their own.

    Raises:
        CallError: They contain a value that JSON lacks.
    """
    is_long = least_chars(request.params, SHORT_BYTES) > SHORT_BYTES
    if is_long:
        await turn()
    check_json(request.params)
    if is_long:
        await turn()


@contextlib.asynccontextmanager
async def _place_here(toolset: Toolset, request: Request) -> AsyncIterator[None]:
    """Hold a place of this host for a request executed elsewhere, and keep its user's session alive."""
    async with (
        toolset.admission.admit(request.user.segment, request.counted),
        toolset.upkeep.in_use(request.user),
    ):
        request.steps.done("admit")
        yield


def _with_limits(toolset: Toolset, request: Request, spec: ToolSpec | None) -> Request:
    """Return a request with the named limits that it counts towards; without a tool, those of all tools."""
    if not toolset.rates.limits:
        return request
    tool = None if spec is None else spec.name
    mine = toolset.rates.of(tool=tool, user=request.user.name, whose=request.user.segment)
    return replace(request, counted=mine) if mine else request


def _unavailable(error: SandboxError) -> CallError:
    """Return the error of a call that got no worker."""
    if isinstance(error, LoadError):
        return CallError(Code.E_TOOL, f"The tool file cannot be loaded any more: {error}")
    if isinstance(error, NoProcess):
        return no_process(str(error))
    if isinstance(error, ZygoteDied):
        return lost(str(error))
    return CallError(
        Code.E_ISOLATION, f"No worker could be confined: {error}", details={"problem": str(error)}
    )
