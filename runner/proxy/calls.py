"""Tool calls through the proxy, under the contract or only guarded, and the MCP tasks created from them.

    UpstreamCall.run        turns every outcome into one `Completed`, which is recorded and published
      execute               runs one of our own tools, or finds the tool on its server
        _placed             admits the call; returns early if the server has a question for the client
          _in_place         stages the inputs; the server executes the tool (`_send`)
            _ended          converts the answer to a contract value, or guards it

Source: `docs/output-guard.md`; requirements S0-19, S0-23, S0-56, S0-70, S0-73, S1-31, S1-104,
S1-113 to S1-128, S2-4, S3-141, S4-11, S4-65, S4-67, S4-82 and S4-95;
`docs/decisions/0033-one-spine-for-two-executors.md`.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import anyio
import mcp_types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

from runner.contract.error_messages import invalid_argument, timed_out
from runner.contract.jsonable import NotJsonError, jsonable
from runner.contract.normalise import lists_files
from runner.contract.payload import payload_of
from runner.contract.widget_dialects import NO_WIDGETS, is_for_page
from runner.errors import CallError, Code
from runner.files.download_links import without_tokens
from runner.formats.json_walks import least_chars
from runner.homes.homes import HomeLease
from runner.output_guard.guard import GuardedCall
from runner.protocol.artifact_tools import READING, reading_result
from runner.protocol.eras import has_sessions
from runner.protocol.internals.connection import message_levels
from runner.protocol.resource_tools import InvalidAnswer, Reader, RemoteError, blocks_of, resource_result
from runner.protocol.result_messages import ResultMessages, inline_limit_of, known_to
from runner.protocol.sender import McpClient, request_facts
from runner.proxy.answers import legible_message, without_our_words
from runner.proxy.questions import answered
from runner.proxy.remote import ConnectionLost, HttpRefusal, ServerUnreachable, is_modern
from runner.proxy.targets import Contract, contract_of
from runner.proxy.upstream import Upstream, WatchedListener
from runner.proxy.upstreams import Upstreams
from runner.settings.isolation import ISOLATION_META
from runner.steps.authorization import authorize_scopes, authorize_widget
from runner.steps.call import Call, listener_of, observed
from runner.steps.inputs import check_json
from runner.steps.listener import CallListener, Client
from runner.steps.request import (
    REPORT,
    SHORT_BYTES,
    CallFiles,
    Completed,
    Executed,
    Request,
    question_of,
    wants_report,
)
from runner.store.protocol import Record
from runner.system.logging_setup import CallScope
from runner.system.turns import turn
from runner.toolset.catalog import ToolSpec
from runner.users.identity import User
from sandbox.deadlines import Ladder, Rung

__all__ = ["TASKS", "answer_call", "answer_task", "created_task", "task_message", "watch"]

TASKS = frozenset({"tasks/cancel", "tasks/get", "tasks/list", "tasks/result", "tasks/update"})
"""Methods of requests about MCP tasks, in either protocol era."""

_ENDS: dict[Rung, Literal["total", "idle"]] = {Rung.TOTAL_END: "total", Rung.IDLE_END: "idle"}
# Keys of a result that the output guard checks.
_RESULTS = ("content", "structuredContent", "isError")
# Tasks of one connection whose tool is known.
_MOST_TASKS = 1000

_Context = ServerRequestContext[Any, Any]


@dataclass(slots=True, kw_only=True, eq=False)
class UpstreamCall(Call):
    """A call of an upstream server's tool.

    Attributes:
        service: The servers.
        ctx: The client's request.
        messages: Converts a contract value to a result message.
        server: Name of the server; empty until it is known, and for one of our own tools.
        tool: The tool's name on that server.
        upstream: The connection to the server.
        contract: Whether the full contract applies, as to our own tools, or only the output guard.
    """

    service: Upstreams
    ctx: _Context
    messages: ResultMessages
    server: str = ""
    tool: str = ""
    contract: Contract = "guard"
    upstream: Upstream = field(init=False)

    passed_on: ClassVar[type[Exception]] = MCPError

    @classmethod
    def of(
        cls, upstreams: Upstreams, messages: ResultMessages, ctx: _Context, params: dict[str, Any], user: User
    ) -> "UpstreamCall":
        """Return the call for a `tools/call` request, or for a request about an MCP task."""
        request = Request(
            user=user,
            method=ctx.method,
            params=params,
            facts=request_facts(ctx),
            client=McpClient(ctx),
            levels=message_levels(ctx),
            inline_max_bytes=inline_limit_of(upstreams.settings, params),
        )
        if ctx.method == "tools/call":
            request = observed(upstreams, request)
        listener = _listener(upstreams, request, request.client)
        return cls(service=upstreams, ctx=ctx, messages=messages, request=request, listener=listener)

    async def execute(self) -> Completed:
        """Authorise the call, then execute it by one of our own tools or on its server."""
        upstreams, request = self.service, self.request
        try:
            async with upstreams.upkeep.in_use(request.user):
                check_json(request.params)
                try:
                    # In a form that every server can read: unpaired surrogates are replaced.
                    self.request = request = replace(request, params=jsonable(dict(request.params)))
                except NotJsonError as error:
                    raise invalid_argument(f"The arguments cannot be passed on: {error}") from error
                authorize_scopes(request.tool, upstreams.settings.scopes(request.tool), request.facts)
                own = await self._own()
                if own is not None:
                    message = await upstreams.guard.message(own, self._guarded(), media_stay=False)
                    return Completed.for_now(message, self._known())
                found = upstreams.names.inside(request.tool)
                if found is None:
                    raise CallError(
                        Code.E_TOOL_NOT_FOUND,
                        f"there is no tool {request.tool!r}; "
                        f"names begin with one of {', '.join(upstreams.names.servers)}",
                    )
                await self.find(*found)
                if self.spec is None:
                    authorize_scopes(request.tool, upstreams.settings.scopes(None), request.facts)
                widgets = None if self.spec is None else self.spec.widgets
                authorize_widget(request.tool, widgets, request.params)
                destroys = self.spec is None or upstreams.approvals.is_destructive(
                    self.server, self.tool, now=self.spec.widgets.may_destroy
                )
                return await self.when_approved(
                    self._placed,
                    places=lambda: [place for place in upstreams.places if place[0] == self.server],
                    may_destroy=destroys,
                )
        except InvalidAnswer as error:
            sentence = f"The server returned no usable result: {error}"
            raise CallError(Code.E_INVALID_RESULT, sentence) from error
        except RemoteError as error:
            refusal = error.refusal if isinstance(error, ServerUnreachable) else error
            if isinstance(refusal, HttpRefusal):
                raise refusal.failure from error
            if isinstance(error, ServerUnreachable):
                raise CallError(Code.E_BUSY, f"{str(error)[:1].upper()}{str(error)[1:]}") from error
            facts = error.facts if isinstance(error, ConnectionLost) else {}
            sentence = f"The server did not answer: {error}"
            raise CallError(Code.E_CRASHED, sentence, details=dict(facts)) from error

    async def find(self, server: str, tool: str) -> None:
        """Connect to a server, and record its description of a tool."""
        upstreams, user, wish = self.service, self.request.user, self.service.ways[server].contract
        self.server, self.tool = server, tool
        self.upstream = upstreams.upstream(self.ctx, user, server)
        # Connect first: `spec` would return None for an unreachable server, as for an unknown tool.
        await self.upstream.connected()
        self.spec = await self.upstream.spec(tool)
        if wish != "guard":
            await self.upstream.move_home()
        arguments, identity = self.request.params.get("arguments"), upstreams.settings.username_parameter
        self.contract = contract_of(wish, self.spec, arguments, identity=identity)
        counted = upstreams.rates.of(tool=self.request.tool, user=user.name, whose=user.segment)
        self.request = replace(self.request, counted=counted)

    async def message(self, completed: Completed) -> dict[str, Any]:
        """Return the client's message for a completed call."""
        request = self.request
        if completed.interim is not None:
            message = dict(completed.interim)
        else:
            files = self.service.files(request.user, trace=request.id)
            names = {"tool": self.tool or None, "server": self.server or None}
            for_page = self.spec is not None and self._guarded().is_for_page
            made = await self.messages.of(completed, request, files, **names, is_for_page=for_page)
            message = self._noted(made)
        if wants_report(request.params) and "content" in message:
            steps = request.steps
            report = {
                "call": request.id,
                "steps_ms": steps.in_ms(),
                **steps.spans(),
                "deadlines": asdict(self.service.settings.deadlines(request.tool)),
                "tier": self.service.tier.value,
            }
            message["_meta"] = {**(message.get("_meta") or {}), REPORT: report}
        return message

    async def of_task(self, wire: Mapping[str, Any]) -> dict[str, Any]:
        """Return the client's message for the result of a finished MCP task."""
        spec = self._known()
        if spec.takes_files or spec.takes_links:
            # The links of the call are no longer known, so all tokens are removed.
            wire = await asyncio.to_thread(without_tokens, dict(wire))
        async with self.upstream.held_home() as home:
            return await self.message(await self._ended(wire, await self._place(home)))

    async def _own(self) -> dict[str, Any] | None:
        """Return the result of one of our own tools; None if a server provides the tool."""
        upstreams, request = self.service, self.request
        name, params, user = request.tool, request.params, request.user
        server, _, act = name.rpartition(".")
        if upstreams.offers_resource_tools and server in upstreams.names.servers:
            authorize_widget(name, NO_WIDGETS, params)
            upstream = upstreams.upstream(self.ctx, user, server)
            # A resource error goes to the model as a result; an unreachable server is an error of the call.
            await upstream.connected()
            arguments, reader = params.get("arguments"), Reader.of(upstreams.guard, self._guarded())
            return await resource_result(act, arguments, upstream.resources, upstream.remote, reader)
        if not upstreams.settings.has_extras or name not in READING:
            return None
        if not upstreams.names.prefixed:
            upstream = upstreams.upstream(self.ctx, user, upstreams.names.servers[0])
            if await upstream.spec(name) is not None:
                return None
        authorize_widget(name, NO_WIDGETS, params)
        return await reading_result(params, upstreams.files(user, trace=request.id))

    async def _placed(self) -> Completed:
        """Execute the call once it is admitted, or return a question that the client must answer first."""
        upstreams, request, client = self.service, self.request, self.request.client
        user, params, pausing = request.user, request.params, upstreams.pausing
        state, token = params.get("requestState"), (params.get("_meta") or {}).get("progressToken")
        # A call that resumes with the client's answer was counted when it started.
        goes_on = pausing.waits(str(state), user.name)
        if not goes_on:
            upstreams.rates.admit(request.counted, now=time.monotonic())
        async with upstreams.admission.admit(user.segment, request.counted):
            # Outside the idle deadline: connecting has its own timeout.
            modern = is_modern(await self.upstream.connected())
            request.steps.done("admit")
            if modern or has_sessions(self.ctx) or not self.upstream.announced.answers_questions:
                if goes_on:
                    # `requestState` named a paused call of another server.
                    upstreams.rates.admit(request.counted, now=time.monotonic())
                return await self._in_place(client)
            answers = params.get("inputResponses")
            done = await pausing.run(
                self._in_place, client, user.name, state=state, answers=answers, token=token
            )
        return done if isinstance(done, Completed) else Completed.for_now(done, self.spec)

    async def _in_place(self, client: Client) -> Completed:
        """Stage the inputs, have the server execute the tool, and collect the result.

        A command keeps running while its outputs are read, and may change them:
        `runner.artifacts.named_file` treats them as hostile.
        """
        upstreams, user = self.service, self.request.user
        # In a call that may pause, `client` is a stand-in.
        self.listener = _listener(upstreams, self.request, client)
        async with upstreams.upkeep.in_use(user), self.upstream.held_home() as home:
            place = await self._place(home)
            with upstreams.call_locks.calling(user.segment):
                if self.contract == "guard":
                    return await self._ended(await self._send(), place)
                async with self.staged(self._known(), place) as inputs:
                    tokens = tuple(token for name in inputs.names if (token := name.partition("token=")[2]))
                    try:
                        wire = await self._send(arguments=inputs.arguments)
                    except MCPError as error:
                        details = without_tokens([error.error.message, error.error.data], tokens)
                        raise MCPError(error.error.code, *details) from error
                    except ConnectionLost as error:
                        # The server's stderr tail may quote the links of this call.
                        text, facts = without_tokens([str(error), dict(error.facts)], tokens)
                        raise ConnectionLost(text, was_refused=error.was_refused, facts=facts) from error
                    if tokens:
                        wire = await asyncio.to_thread(without_tokens, wire, tokens)
                    return await self._ended(wire, place)

    async def _send(self, **changed: Any) -> dict[str, Any]:
        """Return the server's answer within the deadlines of the call.

        Args:
            changed: Params that replace those of the client.

        Raises:
            CallError: `E_TIMEOUT`, or the proxy is shutting down.
            RemoteError: The server did not answer.
            MCPError: The server answered with a JSON-RPC error.
        """
        params = {**self.request.params, **changed, "name": self.tool}

        async def act(watched: WatchedListener) -> dict[str, Any]:
            send = partial(self.upstream.request, "tools/call", watched=watched)
            return await answered(send, params, watched.ask if has_sessions(self.ctx) else None)

        try:
            async with self.service.drain.call(self.listener.tell):
                return await watch(act, self.listener)
        except CallError:
            if not self.upstream.busy and self.upstream.server.tier is not None:
                # The server received a cancellation; a process that ignores it is killed and restarted.
                await self.upstream.drop()
            raise
        except asyncio.CancelledError:
            self.upstream.check_after_cancel()
            raise
        except MCPError as error:
            hint = self.service.ways[self.server].hint(error.error.message)
            if hint is None:
                raise
            raise MCPError(error.error.code, f"{error.error.message}\n{hint}", error.error.data) from error
        finally:
            self.request.steps.done("run")

    async def _ended(self, wire: Mapping[str, Any], place: CallFiles) -> Completed:
        """Return the completed call for the server's answer; record an MCP task that it created.

        Raises:
            CallError: `E_CRASHED`; this client has a task of another server with this id.
        """
        question, task = question_of(wire), created_task(wire)
        if question is not None:
            return Completed.for_now(question, self.spec)
        if task is not None:
            name, tasks, upstreams = str(task["taskId"]), self.upstream.tasks, self.service
            for other in upstreams.names.servers:
                known = upstreams.upstream(self.ctx, self.request.user, other).tasks
                if other != self.server and name in known:
                    raise CallError(
                        Code.E_CRASHED,
                        f"The server {self.server} has made a task of the call and named it {name!r}, as a "
                        f"task of the server {other} is named; end that one, or call the tool without a task",
                    )
            tasks[name] = self.tool
            while len(tasks) > _MOST_TASKS:
                del tasks[next(iter(tasks))]
            return Completed.for_now(task_message(wire), self.spec)
        # The server may have changed its list during the call.
        await self.upstream.spec(self.tool)
        await turn()
        guarded, is_auto = self._guarded(), self.service.ways[self.server].contract == "auto"
        linked = await self._linked(wire)
        # A result that lists files is under the contract, whatever the tool's parameters are named.
        if self.contract == "full" or (is_auto and lists_files(payload_of(wire))):
            executed = Executed(wire=linked, is_long=least_chars(linked, SHORT_BYTES) > SHORT_BYTES)
            return await self.collected(self._known(), place, executed)
        message = self._noted(legible_message(linked, *_RESULTS, "_meta"))
        message = await self.service.guard.message(message, guarded, media_stay=False)
        return Completed.for_now(known_to(self.request.facts.protocol, message), self.spec)

    def _known(self) -> ToolSpec:
        """Return the tool's description; for an unlisted tool, one without parameters."""
        if self.spec is not None:
            return self.spec
        identity = self.service.settings.username_parameter
        name = self.tool or self.request.tool
        return ToolSpec(name=name, parameters={}, output_schema=None, identity=identity)

    async def _place(self, home: HomeLease | None) -> CallFiles:
        """Return the access to the call's files: in a command's home, or by download links."""
        upstreams, server, spec = self.service, self.server, self._known()
        files = upstreams.files(self.request.user, trace=self.request.id)
        delivery = upstreams.settings.file_delivery if upstreams.ways[server].is_command else "url"
        takes_links = spec.takes_links or (spec.takes_files and delivery == "url")
        links = await upstreams.links_for(server) if takes_links else None

        def link(file: Record) -> str:
            if links is None:
                raise CallError(
                    Code.E_NETWORK_DENIED,
                    f"The server {server} cannot fetch the file {file.name!r}: this proxy has no address "
                    "that it could reach. For the operator: set public_url to the one by which others reach "
                    "it",
                    details={"name": file.name, "server": server, "setting": "public_url"},
                )
            return links.to(files.holder, file.id)

        return CallFiles(files=files, inputs=home, outputs=home, link=link, file_delivery=delivery)

    def _guarded(self) -> GuardedCall:
        """Return the facts of the call that the output guard needs."""
        request = self.request
        files = self.service.files(request.user, trace=request.id)
        if not self.server:
            return GuardedCall(tool=request.tool, files=files)
        spec = self.upstream.specs.get(self.tool)
        schema = None if spec is None else spec.output_schema
        for_page = is_for_page(request.params, request.facts.client_capabilities)
        return GuardedCall(
            tool=self.tool,
            server=self.server,
            files=files,
            schema=schema,
            is_for_page=for_page and spec is not None and self.upstream.server.only_pages(spec),
        )

    async def _linked(self, wire: Mapping[str, Any]) -> dict[str, Any]:
        """Return a result with resource links rewritten for clients, or replaced by their contents.

        `_meta` keys that are reserved for the proxy are removed from its blocks.
        """
        reader = Reader.of(self.service.guard, self._guarded())
        blocks, names = list[Any](), self.service.names
        reads = bool(self.service.guard.config.resources.auto_read_if_size_under_bytes)
        for block in wire.get("content", ()):
            if block["type"] == "resource":
                blocks.append({**block, "resource": names.block_outside(self.server, block["resource"])})
            elif block["type"] != "resource_link":
                blocks.append(block)
            else:
                read = dict(block)
                if reads:
                    read = await self.upstream.resources.linked(self.upstream.remote, block, reader)
                outside = {"uri": names.uri_outside(self.server, str(block.get("uri")))}
                blocks += blocks_of({**read, **outside})
        meta = {"_meta": names.meta_outside(self.server, wire["_meta"])} if "_meta" in wire else {}
        return {**wire, "content": [_unsigned(block) for block in blocks], **meta}

    def _noted(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message with the server's isolation tier and, after a failure, a hint."""
        if not self.server:
            return message
        way, noted = self.service.ways[self.server], dict(message)
        if way.tier is not None:
            noted["_meta"] = {**(noted.get("_meta") or {}), ISOLATION_META: {"tier": way.tier.value}}
        if noted.get("isError"):
            texts = (block.get("text") for block in noted["content"] if isinstance(block, Mapping))
            hint = way.hint("\n".join(text for text in texts if isinstance(text, str)))
            if hint:
                noted["content"] = [*noted["content"], {"type": "text", "text": hint}]
        return noted


async def answer_call(
    upstreams: Upstreams, messages: ResultMessages, ctx: _Context, params: dict[str, Any], user: User
) -> dict[str, Any]:
    """Return the result of a `tools/call`.

    Raises:
        MCPError: The server answered with a JSON-RPC error, which is forwarded to the client unchanged.
    """
    call = UpstreamCall.of(upstreams, messages, ctx, params, user)
    with CallScope(call.request.id):
        return await call.message(await call.run())


async def answer_task(
    upstreams: Upstreams, messages: ResultMessages, ctx: _Context, params: dict[str, Any], user: User
) -> dict[str, Any]:
    """Return a server's answer about a task; a task's result is treated like that of a call."""
    names, method = upstreams.names, ctx.method
    connections = [upstreams.upstream(ctx, user, server) for server in names.servers]

    def is_own(upstream: Upstream, task: object) -> bool:
        """Return whether this client started a task, or no other client could have.

        With several servers, one could claim another's task.
        """
        is_for_one = upstream.server.is_command or upstreams.settings.user is not None
        return task in upstream.tasks or (is_for_one and not names.prefixed)

    def own(upstream: Upstream, tasks: object) -> list[Any]:
        listed = [task for task in tasks if isinstance(task, Mapping)] if isinstance(tasks, list) else []
        return [legible_message(task) for task in listed if is_own(upstream, task.get("taskId"))]

    if method == "tasks/list" and not names.prefixed:
        listed = await connections[0].request(method, params)
        return {**legible_message(listed), "tasks": own(connections[0], listed.get("tasks"))}
    if method == "tasks/list":
        found: list[Any] = []
        for upstream in connections:
            with contextlib.suppress(MCPError, RemoteError):
                found += own(upstream, await upstream.pages(method, "tasks"))
        return {"tasks": found}
    task = str(params.get("taskId"))
    known = next((upstream for upstream in connections if is_own(upstream, task)), None)
    if known is None:
        raise MCPError(code=mcp_types.INVALID_PARAMS, message=f"there is no task {task!r}")
    with upstreams.call_locks.calling(user.segment):
        result = await known.request(method, params)
        is_whole = method == "tasks/result"
        # In the later era, an answer about a task may contain the result of the call.
        wire = result if is_whole else result.get("result")
        if not isinstance(wire, Mapping):
            return legible_message(result)
        tool = known.tasks.get(task, "task")
        call = UpstreamCall.of(upstreams, messages, ctx, {"name": names.outside(known.name, tool)}, user)
        await call.find(known.name, tool)
        message = await call.of_task(wire)
    return message if is_whole else {**legible_message(result), "result": message}


async def watch(
    act: Callable[[WatchedListener], Awaitable[dict[str, Any]]], listener: CallListener
) -> dict[str, Any]:
    """Return the result of `act`, or cancel it at the idle or total deadline.

    The session then sends a cancellation to the server.

    Raises:
        CallError: `E_TIMEOUT`.
    """
    ladder = Ladder(listener.deadlines, time.monotonic())
    watched = WatchedListener(listener, ladder)

    async def climb() -> CallError:
        """Send the notice of each rung that is reached; return the error of the last one."""
        try:
            while True:
                await asyncio.sleep(max(0.0, ladder.wakes_at() - time.monotonic()))
                for rung in ladder.climb(time.monotonic()):
                    if rung in _ENDS:
                        last = listener.last_progress
                        return timed_out(listener.deadlines, limit=_ENDS[rung], last_progress=last)
                    await listener.rung(rung)
        finally:
            scope.cancel()

    with anyio.CancelScope() as scope:
        climbing = asyncio.create_task(climb())
        try:
            result = await act(watched)
            await watched.flush()
            return result
        finally:
            climbing.cancel()
    raise await climbing


def _listener(upstreams: Upstreams, request: Request, client: Client) -> CallListener:
    """Return the listener of a call for its client, or for the client's stand-in."""
    deadlines = upstreams.settings.deadlines(request.tool)
    return listener_of(upstreams, replace(request, client=client), request.tool, deadlines)


def _unsigned(block: Any) -> Any:
    """Return a content block and its resource without `_meta` keys that are reserved for the proxy."""
    if not isinstance(block, Mapping):
        return block
    resource = block.get("resource")
    inner = {"resource": without_our_words(resource)} if isinstance(resource, Mapping) else {}
    return without_our_words({**block, **inner})


def created_task(wire: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the task that a server created for a call, if any, in either era."""
    task = wire.get("task") if "task" in wire else wire if wire.get("resultType") == "task" else None
    # A task without an id cannot be requested, and client libraries fail on it.
    return task if isinstance(task, Mapping) and isinstance(task.get("taskId"), str) else None


def task_message(wire: Mapping[str, Any]) -> dict[str, Any]:
    """Return the client's message about a created task, without result keys and without our keys."""
    return legible_message({key: value for key, value in wire.items() if key not in _RESULTS})
