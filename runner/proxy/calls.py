"""Calls of tools through the proxy, under the contract or guarded, and tasks that servers make of them.

`Calls` is the way in for MCP. It runs an `UpstreamCall`:

    UpstreamCall.run        whatever happens becomes one end, which is recorded and published
      execute               one of our own tools answers, or the tool is looked up at its server
        _placed             a place among the calls of this machine; a question may end it for now
          _in_place         inputs are staged; the server executes the tool (`_send`)
            _ended          its answer becomes a contract value, or is guarded

Source: `docs/output-guard.md`; requirements S0-19, S0-23, S0-56, S0-70, S0-73, S1-31, S1-104,
S1-113 to S1-128, S2-4, S3-141, S4-11, S4-65, S4-67, S4-82 and S4-95;
`docs/decisions/0033-one-spine-for-two-executors.md`.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import mcp_types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

from runner.contract.error_messages import invalid_argument
from runner.contract.jsonable import NotJsonError, jsonable
from runner.contract.normalise import lists_files
from runner.contract.payload import payload_of
from runner.contract.widget_dialects import NO_WIDGETS
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
from runner.proxy.deadline_watch import WatchedListener, watch
from runner.proxy.foreign_words import legible_message, without_our_words
from runner.proxy.questions import answered
from runner.proxy.remote import ConnectionLost, HttpRefusal, ServerUnreachable, is_modern
from runner.proxy.targets import Contract, contract_of
from runner.proxy.upstream import Upstream
from runner.proxy.upstreams import Upstreams
from runner.settings.isolation import ISOLATION_META, isolation_meta
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
    file_delivery_of,
    question_of,
    wants_report,
)
from runner.store.protocol import Record
from runner.system.logging_setup import CallScope
from runner.system.turns import turn
from runner.toolset.catalog import ToolSpec
from runner.users.identity import User

__all__ = ["TASKS", "Calls", "created_task", "task_message"]

TASKS = frozenset({"tasks/cancel", "tasks/get", "tasks/list", "tasks/result", "tasks/update"})
"""Requests about calls that a server made tasks of, in either era."""

# Keys of a result that the output guard looks at.
_RESULTS = ("content", "structuredContent", "isError")

_Context = ServerRequestContext[Any, Any]


@dataclass(slots=True, kw_only=True, eq=False)
class UpstreamCall(Call):
    """A call of a tool of another server.

    Attributes:
        service: The servers.
        ctx: The request of its client.
        messages: Makes the message of a contract value.
        server: The server; empty until it is known, and for a tool of our own.
        tool: The name that the tool has there.
        upstream: The connection to it.
        contract: Whether it is treated like a call of a tool of our own, or guarded only.
    """

    service: Upstreams
    ctx: _Context
    messages: ResultMessages
    server: str = ""
    tool: str = ""
    contract: Contract = "guard"
    upstream: Upstream = field(init=False)

    passed_on: ClassVar[type[Exception]] = MCPError

    async def execute(self) -> Completed:
        """Authorise the call, and answer it by a tool of our own or by its server."""
        upstreams, request = self.service, self.request
        try:
            async with upstreams.upkeep.in_use(request.user):
                self.request = request = replace(request, params=_tellable(dict(request.params)))
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
                way = upstreams.ways[self.server]
                destroys = self.spec is None or upstreams.approvals.is_destructive(
                    self.server, self.tool, now=self.spec.widgets.may_destroy
                )
                return await self.when_approved(
                    self._placed,
                    places=lambda: [(self.server, f"{way.name}\n{way.place}")],
                    may_destroy=destroys,
                )
        except RemoteError as error:
            raise _failure(error) from error

    async def find(self, server: str, tool: str) -> None:
        """Connect to a server, and record its description of a tool."""
        upstreams, user, wish = self.service, self.request.user, self.service.ways[server].contract
        self.server, self.tool = server, tool
        self.upstream = upstreams.upstream(self.ctx, user, server)
        # First, since the list of a server that cannot be reached is only missing.
        await self.upstream.connected()
        self.spec = await self.upstream.spec(tool)
        if wish != "guard":
            await upstreams.in_home(self.upstream, user)
        arguments, identity = self.request.params.get("arguments"), upstreams.settings.username_parameter
        self.contract = contract_of(wish, self.spec, arguments, identity=identity)
        counted = upstreams.rates.of(tool=self.request.tool, user=user.name, whose=user.segment)
        self.request = replace(self.request, counted=counted)

    async def message(self, completed: Completed) -> dict[str, Any]:
        """Return the message that the client gets of an end of the call."""
        request = self.request
        if completed.interim is not None:
            message = dict(completed.interim)
        else:
            files = self.service.files(request.user, trace=request.id)
            names = {"tool": self.tool or None, "server": self.server or None}
            message = self._noted(await self.messages.of(completed, request, files, **names))
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
        """Return the message of the result of a call that the server made a task of, once it is there."""
        spec = self._known()
        if spec.takes_files or spec.takes_links:
            # Which links it was given is forgotten by now.
            wire = await asyncio.to_thread(without_tokens, dict(wire))
        async with self.upstream.held_home() as home:
            return await self.message(await self._ended(wire, await self._place(home)))

    async def _own(self) -> dict[str, Any] | None:
        """Return the result of one of our own tools; None if it is another's, or a server's of that name."""
        upstreams, request = self.service, self.request
        name, params, user = request.tool, request.params, request.user
        server, _, act = name.rpartition(".")
        if upstreams.offers_resource_tools and server in upstreams.names.servers:
            authorize_widget(name, NO_WIDGETS, params)
            upstream = upstreams.upstream(self.ctx, user, server)
            # The model reads why a resource could not be read; an unreachable server is an error of the call.
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
        """Execute the call once it has a place, or return the question that its client gets first."""
        upstreams, request, client = self.service, self.request, self.request.client
        user, params, pausing = request.user, request.params, upstreams.pausing
        state, token = params.get("requestState"), (params.get("_meta") or {}).get("progressToken")
        # It was counted when it began, and goes on with the answer that it waited for.
        goes_on = pausing.waits(str(state), user.name)
        if not goes_on:
            upstreams.rates.admit(request.counted, now=time.monotonic())
        async with upstreams.admission.admit(user.segment, request.counted):
            # A server that has to start first is not silent: connecting has a limit of its own.
            modern = is_modern(await self.upstream.connected())
            request.steps.done("admit")
            if modern or has_sessions(self.ctx) or not self.upstream.announced.answers_questions:
                if goes_on:
                    # It named a call of another server.
                    upstreams.rates.admit(request.counted, now=time.monotonic())
                return await self._in_place(client)
            if state is None:
                done = await pausing.run(self._in_place, client, user.name, token=token)
            else:
                answers = params.get("inputResponses")
                done = await pausing.go_on(str(state), answers, client, user.name, token=token)
        return done if isinstance(done, Completed) else Completed.for_now(done, self.spec)

    async def _in_place(self, client: Client) -> Completed:
        """Stage the inputs, have the server execute its tool, and collect what it returned.

        A command runs on while its outputs are read. It can harm only itself:
        `runner.artifacts.named_file` treats them as hostile.
        """
        upstreams, user = self.service, self.request.user
        # While the client waits for its turn to answer, something else stands for it.
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
                        # Its last words may quote the links of this call.
                        text = str(without_tokens(str(error), tokens))
                        raise ConnectionLost(text, was_refused=error.was_refused) from error
                    if tokens:
                        wire = await asyncio.to_thread(without_tokens, wire, tokens)
                    return await self._ended(wire, place)

    async def _send(self, **changed: Any) -> dict[str, Any]:
        """Return the server's answer within the deadlines of the call.

        Args:
            changed: Params that are others than the client sent.

        Raises:
            CallError: `E_TIMEOUT`, or this server is being stopped.
            RemoteError: The server did not answer.
            MCPError: It answered with an error of JSON-RPC.
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
                # It got the cancellation; a process that ignores it is killed and restarted.
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
        """Return the end of the call from what its server answered."""
        question, task = question_of(wire), created_task(wire)
        if question is not None:
            return Completed.for_now(question, self.spec)
        if task is not None:
            self._began(str(task["taskId"]))
            return Completed.for_now(task_message(wire), self.spec)
        # The server may have changed its list during the call.
        await self.upstream.spec(self.tool)
        await turn()
        guarded, is_auto = self._guarded(), self.service.ways[self.server].contract == "auto"
        linked = await self._linked(wire)
        # The contract by its result, whatever the parameters of the tool are called.
        if self.contract == "full" or (is_auto and lists_files(payload_of(wire))):
            executed = Executed(wire=linked, is_long=least_chars(linked, SHORT_BYTES) > SHORT_BYTES)
            return await self.collected(self._known(), place, executed)
        message = self._noted(legible_message(linked, *_RESULTS, "_meta"))
        message = await self.service.guard.message(message, guarded, media_stay=False)
        return Completed.for_now(known_to(self.request.facts.protocol, message), self.spec)

    def _known(self) -> ToolSpec:
        """Return the tool; one that no server lists declares nothing, and is given nothing of ours."""
        if self.spec is not None:
            return self.spec
        identity = self.service.settings.username_parameter
        name = self.tool or self.request.tool
        return ToolSpec(name=name, parameters={}, output_schema=None, identity=identity)

    async def _place(self, home: HomeLease | None) -> CallFiles:
        """Return the access to the call's files: in the home of a command, or behind links."""
        upstreams, server, spec = self.service, self.server, self._known()
        files = upstreams.files(self.request.user, trace=self.request.id)
        delivery = file_delivery_of(upstreams.settings) if upstreams.ways[server].is_command else "url"
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
        """Return the call as the output guard knows it."""
        request = self.request
        files = self.service.files(request.user, trace=request.id)
        if not self.server:
            return GuardedCall(tool=request.tool, files=files)
        spec = self.upstream.specs.get(self.tool)
        schema = None if spec is None else spec.output_schema
        return GuardedCall(tool=self.tool, server=self.server, files=files, schema=schema)

    async def _linked(self, wire: Mapping[str, Any]) -> dict[str, Any]:
        """Return a result with resource links rewritten for clients, or replaced by their contents.

        Keys of its blocks that only we may set are removed.
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
        """Return a message with the isolation of its server and, after a failure, what may help."""
        if not self.server:
            return message
        way, noted = self.service.ways[self.server], dict(message)
        if way.tier is not None:
            noted["_meta"] = {**(noted.get("_meta") or {}), ISOLATION_META: isolation_meta(way.tier)}
        if noted.get("isError"):
            texts = (block.get("text") for block in noted["content"] if isinstance(block, Mapping))
            hint = way.hint("\n".join(text for text in texts if isinstance(text, str)))
            if hint:
                noted["content"] = [*noted["content"], {"type": "text", "text": hint}]
        return noted

    def _began(self, task: str) -> None:
        """Note the task that the server has made of the call.

        Raises:
            CallError: `E_CRASHED`; a task of another server, begun by the same client, has that name.
        """
        for other in self.service.names.servers:
            if (
                other != self.server
                and task in self.service.upstream(self.ctx, self.request.user, other).tasks
            ):
                raise CallError(
                    Code.E_CRASHED,
                    f"The server {self.server} has made a task of the call and named it {task!r}, as a task "
                    f"of the server {other} is named that was begun before; end that one, or call the tool "
                    "without a task",
                )
        self.upstream.began(task, self.tool)


@dataclass(frozen=True, slots=True)
class Calls:
    """Answers `tools/call`, and requests about tasks.

    Attributes:
        upstreams: The servers.
        messages: Makes the messages of contract values.
    """

    upstreams: Upstreams
    messages: ResultMessages

    async def call(self, ctx: _Context, params: dict[str, Any], user: User) -> dict[str, Any]:
        """Return the result of a `tools/call`.

        Raises:
            MCPError: The server answered with an error of JSON-RPC, which goes to the client as it is.
        """
        call = self._call(ctx, params, user)
        with CallScope(call.request.id):
            return await call.message(await call.run())

    def _call(self, ctx: _Context, params: dict[str, Any], user: User) -> UpstreamCall:
        upstreams = self.upstreams
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
        return UpstreamCall(
            service=upstreams, ctx=ctx, messages=self.messages, request=request, listener=listener
        )

    async def task(self, ctx: _Context, params: dict[str, Any], user: User) -> dict[str, Any]:
        """Return a server's answer about a task; the result of one is treated like that of a call."""
        names = self.upstreams.names
        upstreams = [self.upstreams.upstream(ctx, user, server) for server in names.servers]
        if ctx.method == "tasks/list":
            return await self._tasks(upstreams, params)
        task = str(params.get("taskId"))
        known = [upstream for upstream in upstreams if task in upstream.tasks]
        if not known and len(upstreams) == 1 and self._is_for_one(upstreams[0]):
            known = upstreams
        if not known:
            raise MCPError(code=mcp_types.INVALID_PARAMS, message=f"there is no task {task!r}")
        upstream = known[0]
        with self.upstreams.call_locks.calling(user.segment):
            result = await upstream.request(ctx.method, params)
            is_whole = ctx.method == "tasks/result"
            # In the later era the task's message contains the result of the call.
            wire = result if is_whole else result.get("result")
            if not isinstance(wire, Mapping):
                return legible_message(result)
            tool = upstream.tasks.get(task, "task")
            call = self._call(ctx, {"name": names.outside(upstream.name, tool)}, user)
            await call.find(upstream.name, tool)
            message = await call.of_task(wire)
        return message if is_whole else {**legible_message(result), "result": message}

    async def _tasks(self, upstreams: list[Upstream], params: dict[str, Any]) -> dict[str, Any]:
        """Return the tasks of servers that are this client's, or this user's alone."""

        def own(upstream: Upstream, tasks: object) -> list[Any]:
            listed = [task for task in tasks if isinstance(task, Mapping)] if isinstance(tasks, list) else []
            is_for_one = self._is_for_one(upstream)
            return [
                legible_message(task) for task in listed if is_for_one or task.get("taskId") in upstream.tasks
            ]

        if len(upstreams) == 1:
            listed = await upstreams[0].request("tasks/list", params)
            return {**legible_message(listed), "tasks": own(upstreams[0], listed.get("tasks"))}
        found: list[Any] = []
        for upstream in upstreams:
            with contextlib.suppress(MCPError, RemoteError):
                found += own(upstream, await upstream.pages("tasks/list", "tasks"))
        return {"tasks": found}

    def _is_for_one(self, upstream: Upstream) -> bool:
        """True if all tasks of a server are one user's: it is a command, or the proxy has one user only.

        Of several servers each is asked for what this client has begun there: one could claim another's.
        """
        upstreams = self.upstreams
        is_alone = upstreams.ways[upstream.name].is_command or upstreams.settings.user is not None
        return is_alone and not upstreams.names.prefixed


def _listener(upstreams: Upstreams, request: Request, client: Client) -> CallListener:
    """Return the listener of a call on behalf of its client, or of what stands for it."""
    deadlines = upstreams.settings.deadlines(request.tool)
    return listener_of(upstreams, replace(request, client=client), request.tool, deadlines)


def _tellable(params: dict[str, Any]) -> dict[str, Any]:
    """Return the params of a call in a form that every server can read: unpaired surrogates are replaced.

    Raises:
        CallError: `E_INVALID_ARGUMENT`: there is something in them that JSON does not have.
    """
    check_json(params)
    try:
        plain: dict[str, Any] = jsonable(params)
    except NotJsonError as error:
        raise invalid_argument(f"The arguments cannot be passed on: {error}") from error
    return plain


def _failure(error: RemoteError) -> CallError:
    """Return the error of a call that a server did not answer, or not by the protocol."""
    if isinstance(error, InvalidAnswer):
        return CallError(Code.E_INVALID_RESULT, f"The remote server is at fault: {error}")
    refusal = error.refusal if isinstance(error, ServerUnreachable) else error
    if isinstance(refusal, HttpRefusal):
        return refusal.failure
    code = Code.E_BUSY if isinstance(error, ServerUnreachable) else Code.E_CRASHED
    return CallError(code, f"The remote server did not answer: {error}")


def _unsigned(block: Any) -> Any:
    """Return a content block, and the resource in it, without `_meta` keys that only we may set."""
    if not isinstance(block, Mapping):
        return block
    resource = block.get("resource")
    inner = {"resource": without_our_words(resource)} if isinstance(resource, Mapping) else {}
    return without_our_words({**block, **inner})


def created_task(wire: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the task that a server has made of a call, if it has, in either era."""
    task = wire.get("task") if "task" in wire else wire if wire.get("resultType") == "task" else None
    # A task without an id cannot be requested, and client libraries fail on it.
    return task if isinstance(task, Mapping) and isinstance(task.get("taskId"), str) else None


def task_message(wire: Mapping[str, Any]) -> dict[str, Any]:
    """Return a client's message about a created task: without a result, and without our keys."""
    return legible_message({key: value for key, value in wire.items() if key not in _RESULTS})
