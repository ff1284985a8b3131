"""Calls of tools through the proxy, and tasks that servers make of them: watched over, and guarded.

Source: `docs/output-guard.md`; requirements S4-11, S4-65, S4-67, S4-82 and S4-95; architecture,
"One call, in order", of which they have steps 1, 2 and 10.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeVar

import mcp_types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

from runner.artifacts.accept import failed
from runner.contract.error_messages import invalid_argument
from runner.contract.jsonable import NotJsonError, jsonable
from runner.contract.normalise import lists_files
from runner.contract.payload import payload_of
from runner.contract.widget_dialects import NO_WIDGETS, WIDGET_CALL_META
from runner.errors import CallError, Code
from runner.output_guard.guard import GuardedCall
from runner.protocol.artifact_tools import READING, reading_result
from runner.protocol.failed_requests import redacted_result
from runner.protocol.resource_tools import RemoteError, resource_result
from runner.protocol.result_messages import ResultMessages, inline_limit_of, known_to
from runner.protocol.sender import McpClient, request_facts
from runner.proxy.contract import contract_of
from runner.proxy.contracted import answer, answer_of_task
from runner.proxy.foreign_words import legible_message
from runner.proxy.remote_call import (
    RESULTS,
    RemoteCall,
    created_task,
    reader_of,
    remote_failure,
    task_message,
)
from runner.proxy.upstream import Upstream
from runner.proxy.upstreams import Upstreams
from runner.steps.authorization import authorize_scopes, authorize_widget
from runner.steps.call import observed, record_end
from runner.steps.client_message import Delivery, render
from runner.steps.inputs import check_json
from runner.steps.listener import Client
from runner.steps.request import Completed, Request, question_of
from runner.steps.timing import REPORT, wants_report
from runner.system.logging_setup import CallScope
from runner.users.identity import User

__all__ = ["TASKS", "Calls"]

TASKS = frozenset({"tasks/cancel", "tasks/get", "tasks/list", "tasks/result", "tasks/update"})
"""What a client asks about calls that a server made tasks of, in either era."""


_Context = ServerRequestContext[Any, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Calls:
    """Answers `tools/call`, and questions after tasks.

    Attributes:
        upstreams: The servers.
        levels: Says which log messages the client of a request wants to get.
        messages: Makes the results of tools that are treated like our own.
    """

    upstreams: Upstreams
    levels: Callable[[_Context], Collection[str]]
    messages: ResultMessages

    async def call(self, ctx: _Context, params: dict[str, Any], user: User) -> dict[str, Any]:
        """Return the result of a `tools/call`, by the contract or guarded."""
        request = observed(self.upstreams, self._request(ctx, params, user))
        # As in `Call.run`: until there is an end, what ends the call is a cancellation.
        outcome = Code.E_CANCELLED.name
        with CallScope(request.id):
            try:
                try:
                    self.upstreams.observers.check()
                    async with self.upstreams.upkeep.in_use(user):
                        plain = replace(request, params=_tellable(dict(request.params)))
                        result = await self._result(ctx, plain)
                    # A question, and a task that was begun, go to the client as they came.
                    outcome = "ok"
                except (RemoteError, CallError) as error:
                    failure = remote_failure(error) if isinstance(error, RemoteError) else error
                    ours = GuardedCall(tool=request.tool, files=self.upstreams.files(user, trace=request.id))
                    # What a server says of its failure is as long as it likes.
                    result = await self.upstreams.guard.message(_failure(failure), ours, media_stay=False)
                    outcome = failure.code.name
                except Exception:
                    # Its client gets it as it is, an error of JSON-RPC mostly.
                    outcome = "error"
                    raise
            finally:
                record_end(self.upstreams, request, outcome)
            result = redacted_result(self.upstreams.own_paths, result)
            if wants_report(params) and "content" in result:
                result["_meta"] = {**(result.get("_meta") or {}), REPORT: self._report(request)}
        return result

    def _report(self, request: Request) -> dict[str, Any]:
        """Return the outcome of a call, as far as it is known here, for its client."""
        deadlines = asdict(self.upstreams.settings.deadlines(request.tool))
        steps = request.steps
        return {
            "call": request.id,
            "steps_ms": steps.in_ms(),
            **steps.spans(),
            "deadlines": deadlines,
            "tier": self.upstreams.tier.value,
        }

    def _request(self, ctx: _Context, params: dict[str, Any], user: User) -> Request:
        facts = request_facts(ctx)
        return Request(
            user=user,
            method=ctx.method,
            params=params,
            facts=facts,
            client=McpClient(ctx),
            levels=frozenset(self.levels(ctx)),
            inline_max_bytes=inline_limit_of(self.upstreams.settings, params, facts),
        )

    async def task(self, ctx: _Context, params: dict[str, Any], user: User) -> dict[str, Any]:
        """Return what a server says of a task; the result of one is guarded like that of a call."""
        if ctx.method == "tasks/list":
            return await self._tasks(ctx, params, user)
        task = str(params.get("taskId"))
        servers = self.upstreams.names.servers
        upstreams = [self.upstreams.upstream(ctx, user, server) for server in servers]
        known = [upstream for upstream in upstreams if task in upstream.tasks]
        if not known and len(upstreams) == 1 and self._is_for_one(servers[0]):
            known = upstreams
        if not known:
            raise MCPError(code=mcp_types.INVALID_PARAMS, message=f"there is no task {task!r}")
        with self.upstreams.call_locks.calling(user.segment):
            return await self._asked_of(ctx, params, user, known[0], task)

    async def _asked_of(
        self, ctx: _Context, params: dict[str, Any], user: User, upstream: Upstream, task: str
    ) -> dict[str, Any]:
        """Return what the server says of a task that is this client's."""
        result = await upstream.request(ctx.method, params)
        whole = ctx.method == "tasks/result"
        # The later era has the result of the call inside of what is said of the task.
        wire = result if whole else result.get("result")
        if not isinstance(wire, Mapping):
            return legible_message(result)
        tool = upstream.tasks.get(task, "task")
        names = {"name": self.upstreams.names.outside(upstream.name, tool)}
        call = await self._remote(ctx, self._request(ctx, names, user), upstream.name, tool)
        if call.contract == "full":
            message = await answer_of_task(call, wire, self.messages)
        else:
            message = await self._guarded_message(call, wire)
        return message if whole else {**legible_message(result), "result": message}

    async def _tasks(self, ctx: _Context, params: dict[str, Any], user: User) -> dict[str, Any]:
        servers = self.upstreams.names.servers
        if len(servers) == 1:
            upstream = self.upstreams.upstream(ctx, user, servers[0])
            listed = await upstream.request(ctx.method, params)
            return {**legible_message(listed), "tasks": self._own_tasks(upstream, listed.get("tasks"))}
        found: list[Any] = []
        for server in servers:
            with contextlib.suppress(MCPError, RemoteError):
                upstream = self.upstreams.upstream(ctx, user, server)
                found += self._own_tasks(upstream, await upstream.pages(ctx.method, "tasks"))
        return {"tasks": found}

    def _own_tasks(self, upstream: Upstream, tasks: object) -> list[Any]:
        """Return those of a server's tasks that are this client's, or this user's alone."""
        listed = [task for task in tasks if isinstance(task, Mapping)] if isinstance(tasks, list) else []
        is_for_one = self._is_for_one(upstream.name)
        return [
            legible_message(task) for task in listed if is_for_one or task.get("taskId") in upstream.tasks
        ]

    def _is_for_one(self, server: str) -> bool:
        """True if all tasks of a server are one user's: it is a command, or the proxy has one user only.

        Of several servers each is asked for what this client has begun there: one could claim another's.
        """
        upstreams = self.upstreams
        is_alone = upstreams.ways[server].is_command or upstreams.settings.user is not None
        return is_alone and not upstreams.names.prefixed

    async def _result(self, ctx: _Context, request: Request) -> dict[str, Any]:
        upstreams, params, user = self.upstreams, request.params, request.user
        authorize_scopes(request.tool, upstreams.settings.scopes(request.tool), request.facts)
        own = await self._own(ctx, request)
        if own is not None:
            ours = GuardedCall(tool=request.tool, files=upstreams.files(user, trace=request.id))
            message = await upstreams.guard.message(own, ours, media_stay=False)
            record_end(upstreams, request, _outcome(message))
            return message
        found = upstreams.names.inside(request.tool)
        if found is None:
            raise CallError(
                Code.E_TOOL_NOT_FOUND,
                f"there is no tool {request.tool!r}; "
                f"names begin with one of {', '.join(upstreams.names.servers)}",
            )
        call = await self._remote(ctx, request, *found)
        if WIDGET_CALL_META in (params.get("_meta") or {}):
            await call.upstream.schema(call.tool)
            authorize_widget(request.tool, call.upstream.widgets.get(call.tool), params)
        if call.contract == "full":
            return await answer(call, self.messages)
        return await self._guarded(call)

    async def _remote(self, ctx: _Context, request: Request, server: str, tool: str) -> RemoteCall:
        """Return a call with what is known of its tool."""
        upstreams, wish = self.upstreams, self.upstreams.ways[server].contract
        upstream = upstreams.upstream(ctx, request.user, server)
        spec = None
        if wish != "guard":
            spec = await upstream.spec(tool)
            await upstreams.in_home(upstream, request.user)
        user = request.user
        counted = upstreams.rates.of(tool=request.tool, user=user.name, whose=user.segment)
        return RemoteCall(
            upstreams=upstreams,
            ctx=ctx,
            request=replace(request, counted=counted),
            server=server,
            tool=tool,
            upstream=upstream,
            spec=spec,
            contract=contract_of(
                wish,
                spec,
                request.params.get("arguments"),
                identity=upstreams.settings.username_parameter,
            ),
        )

    async def _guarded(self, call: RemoteCall) -> dict[str, Any]:
        """Return what the server answers to what its client sent, guarded."""
        upstreams, request = self.upstreams, call.request
        call.admit()

        async def act(client: Client) -> dict[str, Any]:
            listener = call.listener(client)
            user = request.user
            listener.publish = partial(upstreams.events.publish, user=user.segment, session=user.session)
            with upstreams.call_locks.calling(user.segment):
                return await call.send(listener)

        wire: Any = await call.reached(act)
        if isinstance(wire, Completed):
            raise call.tool_has_changed()
        question = question_of(wire)
        if question is not None:
            return question
        task = created_task(wire)
        if task is not None:
            call.began(task)
            return task_message(wire)
        await call.upstream.schema(call.tool)
        await asyncio.sleep(0)
        if upstreams.ways[call.server].contract == "auto" and lists_files(payload_of(wire)):
            # The contract by its result, whatever the parameters of the tool are called.
            message = await answer_of_task(call, wire, self.messages)
        else:
            message = await self._guarded_message(call, wire)
        record_end(upstreams, request, _outcome(message))
        return message

    async def _guarded_message(self, call: RemoteCall, wire: Mapping[str, Any]) -> dict[str, Any]:
        guarded = call.guarded()
        linked = legible_message(await call.linked(wire, guarded), *RESULTS, "_meta")
        message = await self.upstreams.guard.message(call.noted(linked), guarded, media_stay=False)
        return known_to(call.request.facts.protocol, message)

    async def _own(self, ctx: _Context, request: Request) -> dict[str, Any] | None:
        """Return the result of one of our own tools; None if it is another's, or a server's of that name."""
        upstreams, name, params, user = self.upstreams, request.tool, request.params, request.user
        server, _, act = name.rpartition(".")
        if upstreams.offers_resource_tools and server in upstreams.names.servers:
            authorize_widget(name, NO_WIDGETS, params)
            return await self._resource_tool(ctx, request, server, act)
        if upstreams.settings.extras and name in READING and name not in await self._tools(ctx, user):
            authorize_widget(name, NO_WIDGETS, params)
            return await reading_result(params, upstreams.files(user, trace=request.id))
        return None

    async def _tools(self, ctx: _Context, user: User) -> Collection[str]:
        names = self.upstreams.names
        if names.prefixed:
            return ()
        upstream = self.upstreams.upstream(ctx, user, names.servers[0])
        await upstream.schema("")
        return upstream.schemas

    async def _resource_tool(
        self, ctx: _Context, request: Request, server: str, act: str
    ) -> dict[str, Any] | None:
        upstream = self.upstreams.upstream(ctx, request.user, server)
        files = self.upstreams.files(request.user, trace=request.id)
        reader = reader_of(self.upstreams, GuardedCall(tool=act, files=files))
        arguments = request.params.get("arguments")
        return await resource_result(act, arguments, upstream.resources, await upstream.remote(), reader)


def _tellable(params: dict[str, Any]) -> dict[str, Any]:
    """Return the params of a call as every server can be told of them: half of a surrogate pair is replaced.

    Raises:
        CallError: `E_INVALID_ARGUMENT`: there is something in them that JSON does not have.
    """
    check_json(params)
    try:
        plain: dict[str, Any] = jsonable(params)
    except NotJsonError as error:
        raise invalid_argument(f"The arguments cannot be passed on: {error}") from error
    return plain


def _failure(error: CallError) -> dict[str, Any]:
    return render(failed(error), wire={}, output_schema=None, delivery=Delivery.REFERENCE)


def _outcome(result: Mapping[str, Any]) -> str:
    return "error" if result.get("isError") else "ok"
