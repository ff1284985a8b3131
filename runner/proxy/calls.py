"""Calls of tools through the proxy, and tasks that servers make of them: watched over, and guarded.

Source: issue "Nothing floods the model"; requirements S4-11, S4-65, S4-67, S4-82 and S4-95; architecture,
"One call, in order", of which they have steps 1, 2 and 10.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import mcp_types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

from runner.artifacts.process import failed
from runner.authorization import authorize_widget
from runner.contract.envelope import invalid_argument
from runner.contract.jsonable import NotJsonError, jsonable
from runner.dialects import NO_WIDGETS, WIDGET_CALL_META
from runner.errors import CallError, Code
from runner.failed_requests import told_result
from runner.guarding import GuardedCall
from runner.identity import User
from runner.incoming import McpClient, has_sessions
from runner.inputs import check_json
from runner.isolation import ISOLATION_META, isolation_meta
from runner.ladder import CallListener, Client
from runner.model_resources import Reader, RemoteError, blocks_of, resource_result
from runner.proxy.backend import Backend, Unreachable
from runner.proxy.desk import Desk
from runner.proxy.remote import is_modern
from runner.proxy.rounds import answered
from runner.proxy.watch import Watched, watch
from runner.reading import READING, reading_result
from runner.render import Delivery, render
from runner.telemetry import CallScope

__all__ = ["TASKS", "Calls"]

log = logging.getLogger(__name__)

TASKS = frozenset({"tasks/cancel", "tasks/get", "tasks/list", "tasks/result", "tasks/update"})
"""What a client asks about calls that a server made tasks of, in either era."""

_QUESTION = ("resultType", "inputRequests", "requestState")

_Context = ServerRequestContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Calls:
    """Answers `tools/call`, and questions after tasks.

    Attributes:
        desk: The servers.
        levels: Says which log messages the client of a request wants to get.
    """

    desk: Desk
    levels: Callable[[_Context], Collection[str]]

    async def call(self, ctx: _Context, params: dict[str, Any], user: User) -> dict[str, Any]:
        """Return the result of a `tools/call`, guarded."""
        trace = uuid.uuid4().hex[:12]
        name = str(params.get("name"))
        with CallScope(trace):
            offered = user.name in self.desk.guard.keepers
            try:
                result = await self._result(ctx, _tellable(params), user, trace)
            except (RemoteError, CallError) as error:
                ours = GuardedCall(tool=name, files=self.desk.files(user, trace=trace))
                # What a server says of its failure is as long as it likes.
                result = await self.desk.guard.message(_failure(error), ours, media_stay=False)
            result = told_result(self.desk.own_paths, result)
            outcome = "error" if result.get("isError") else "ok"
            # Once the answer is on its way: nobody waits for a line of the log.
            facts = {"user": user.name, "tool": name, "outcome": outcome}
            asyncio.get_running_loop().call_soon(partial(log.info, "call ended", extra=facts))
        if not offered and user.name in self.desk.guard.keepers and self.desk.settings.extras:
            await self.desk.tell(ctx, user, "notifications/tools/list_changed")
        return result

    async def task(self, ctx: _Context, params: dict[str, Any], user: User) -> dict[str, Any]:
        """Return what a server says of a task; the result of one is guarded like that of a call."""
        if ctx.method == "tasks/list":
            return await self._tasks(ctx, params, user)
        task = str(params.get("taskId"))
        servers = self.desk.names.servers
        backends = [self.desk.backend(ctx, user, server) for server in servers]
        known = [backend for backend in backends if task in backend.tasks] or backends[: len(backends) == 1]
        if not known:
            raise MCPError(code=mcp_types.INVALID_PARAMS, message=f"there is no task {task!r}")
        backend = known[0]
        result = await backend.request(ctx.method, params)
        call = self._guarded(backend.tasks.get(task, "task"), backend.name, user, None)
        if ctx.method == "tasks/result":
            return await self.desk.guard.message(result, call, media_stay=False)
        if isinstance(result.get("result"), Mapping):
            # The later era has the result of the call inside of what is said of the task.
            return {
                **result,
                "result": await self.desk.guard.message(result["result"], call, media_stay=False),
            }
        return result

    async def _tasks(self, ctx: _Context, params: dict[str, Any], user: User) -> dict[str, Any]:
        servers = self.desk.names.servers
        if len(servers) == 1:
            return await self.desk.backend(ctx, user, servers[0]).request(ctx.method, params)
        found: list[Any] = []
        for server in servers:
            with contextlib.suppress(MCPError, RemoteError):
                found += await self.desk.backend(ctx, user, server).pages(ctx.method, "tasks")
        return {"tasks": found}

    async def _result(self, ctx: _Context, params: dict[str, Any], user: User, trace: str) -> dict[str, Any]:
        name, desk = str(params.get("name")), self.desk
        own = await self._own(ctx, name, params, user, trace)
        if own is not None:
            ours = GuardedCall(tool=name, files=desk.files(user, trace=trace))
            return await desk.guard.message(own, ours, media_stay=False)
        found = desk.names.inside(name)
        if found is None:
            raise CallError(
                Code.E_TOOL_NOT_FOUND,
                f"there is no tool {name!r}; names begin with one of {', '.join(desk.names.servers)}",
            )
        server, inner = found
        backend = desk.backend(ctx, user, server)
        if WIDGET_CALL_META in (params.get("_meta") or {}):
            await backend.schema(inner)
            authorize_widget(name, backend.widgets.get(inner), params)
        wire = await self._wire(ctx, backend, {**params, "name": inner}, name, user)
        if wire.get("resultType") == "input_required":
            return {key: wire[key] for key in _QUESTION if key in wire}
        begun = wire.get("task") if "task" in wire else wire if wire.get("resultType") == "task" else None
        if isinstance(begun, Mapping):
            backend.began(str(begun.get("taskId")), inner)
            return wire
        call = self._guarded(inner, server, user, await backend.schema(inner), trace=trace)
        message = await self._with_links(wire, backend, server, self._reader(call))
        tier = desk.ways[server].tier
        if tier is not None:
            message["_meta"] = {**(message.get("_meta") or {}), ISOLATION_META: isolation_meta(tier)}
        if message.get("isError"):
            hint = desk.ways[server].hint("\n".join(_texts(message["content"])))
            # Behind what the server says, which stays as it is.
            message["content"] += [{"type": "text", "text": hint}] if hint else []
        return await desk.guard.message(message, call, media_stay=False)

    def _guarded(
        self,
        tool: str,
        server: str,
        user: User,
        schema: Mapping[str, Any] | None,
        *,
        trace: str | None = None,
    ) -> GuardedCall:
        return GuardedCall(tool=tool, server=server, files=self.desk.files(user, trace=trace), schema=schema)

    async def _own(
        self, ctx: _Context, name: str, params: dict[str, Any], user: User, trace: str
    ) -> dict[str, Any] | None:
        """Return the result of one of our own tools; None if it is none, or a server's of that name."""
        desk = self.desk
        server, _, act = name.rpartition(".")
        if desk.offers_resource_tools and server in desk.names.servers:
            authorize_widget(name, NO_WIDGETS, params)
            return await self._resource_tool(ctx, server, act, params.get("arguments"), user, trace)
        if desk.settings.extras and name in READING and name not in await self._tools(ctx, user):
            authorize_widget(name, NO_WIDGETS, params)
            return await reading_result(params, desk.files(user, trace=trace))
        return None

    async def _tools(self, ctx: _Context, user: User) -> Collection[str]:
        names = self.desk.names
        if names.prefixed:
            return ()
        backend = self.desk.backend(ctx, user, names.servers[0])
        await backend.schema("")
        return backend.schemas

    async def _resource_tool(
        self, ctx: _Context, server: str, act: str, arguments: Any, user: User, trace: str
    ) -> dict[str, Any] | None:
        backend = self.desk.backend(ctx, user, server)
        reader = self._reader(GuardedCall(tool=act, files=self.desk.files(user, trace=trace)))
        return await resource_result(act, arguments, backend.resources, await backend.remote(), reader)

    def _reader(self, call: GuardedCall) -> Reader:
        return Reader(
            store=call.files.library.store,
            scope=call.scope,
            kept=lambda records: self.desk.guard.kept(records, call),
        )

    async def _wire(
        self, ctx: _Context, backend: Backend, params: dict[str, Any], name: str, user: User
    ) -> dict[str, Any]:
        """Return what the server answers, however the eras of client and server let it ask meanwhile."""
        client, desk = McpClient(ctx), self.desk

        async def act(client: Client) -> dict[str, Any]:
            return await self._watched(ctx, client, backend, params, name, user)

        async with desk.admission.admit(user.segment):
            # A server that has to start first is not silent: connecting has a limit of its own.
            modern = is_modern(await backend.connected())
            if modern or has_sessions(ctx) or not backend.announced.can_be_asked:
                return await act(client)
            state = params.get("requestState")
            token = (params.get("_meta") or {}).get("progressToken")
            if state is not None:
                answers = params.get("inputResponses")
                return await desk.pausing.go_on(str(state), answers, client, user.name, token=token)
            return await desk.pausing.run(act, client, user.name, token=token)

    async def _watched(
        self,
        ctx: _Context,
        client: Client,
        backend: Backend,
        params: dict[str, Any],
        name: str,
        user: User,
    ) -> dict[str, Any]:
        desk = self.desk
        listener = CallListener(
            client=client,
            params=dict(ctx.params or {}),
            levels=frozenset(self.levels(ctx)),
            deadlines=desk.settings.deadlines(name),
            user=user.segment,
            state=desk.state,
            publish=partial(desk.events.publish, user=user.segment, session=user.session),
        )

        async def act(watched: Watched) -> dict[str, Any]:
            async def send(params: dict[str, Any]) -> dict[str, Any]:
                return await backend.request("tools/call", params, watched)

            return await answered(send, params, watched.ask if has_sessions(ctx) else None)

        try:
            async with desk.drain.call(listener.tell):
                return await watch(act, listener)
        except CallError:
            if not backend.busy and backend.ends_with_its_connection:
                # It was asked to stop; a process that does not listen is ended, and started anew.
                await backend.drop()
            raise

    async def _with_links(
        self, wire: Mapping[str, Any], backend: Backend, server: str, reader: Reader
    ) -> dict[str, Any]:
        blocks: list[Any] = []
        for block in wire.get("content") or ():
            if not isinstance(block, Mapping) or block.get("type") != "resource_link":
                blocks.append(block)
                continue
            linked = dict(block)
            if self.desk.guard.config.resources.auto_read_if_size_under_bytes:
                linked = await backend.resources.linked(await backend.remote(), block, reader)
            outside = {"uri": self.desk.names.uri_outside(server, str(block.get("uri")))}
            blocks += blocks_of({**linked, **outside})
        return {**wire, "content": blocks}


def _texts(blocks: list[Any]) -> list[str]:
    texts = [block.get("text") for block in blocks if isinstance(block, Mapping)]
    return [text for text in texts if isinstance(text, str)]


def _tellable(params: dict[str, Any]) -> dict[str, Any]:
    """Return the params of a call as every server can be told of them: half of a surrogate pair is replaced.

    Raises:
        CallError: `E_INVALID_ARGUMENT`: there is something in them that JSON does not have.
    """
    check_json(params)
    try:
        told: dict[str, Any] = jsonable(params)
    except NotJsonError as error:
        raise invalid_argument(f"The arguments cannot be passed on: {error}") from error
    return told


def _failure(error: RemoteError | CallError) -> dict[str, Any]:
    if isinstance(error, RemoteError):
        code = Code.E_BUSY if isinstance(error, Unreachable) else Code.E_CRASHED
        error = CallError(code, f"The remote server did not answer: {error}")
    return render(failed(error), wire={}, output_schema=None, delivery=Delivery.REFERENCE)
