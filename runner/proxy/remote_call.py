"""One call of a tool of another server: whom it counts for, how it gets there, and what is heard meanwhile.

Source: requirements S1-113 to S1-128, S3-141; architecture, "One call, in order": it is admitted as there
(step 2), and a server replaces the worker (step 5).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

from runner.errors import CallError, Code
from runner.output_guard.guard import GuardedCall
from runner.protocol.eras import has_sessions
from runner.protocol.resource_tools import InvalidAnswer, Reader, RemoteError, blocks_of
from runner.proxy.contract import Contract
from runner.proxy.deadline_watch import WatchedListener, watch
from runner.proxy.foreign_words import legible_message, without_our_words
from runner.proxy.question_rounds import answered
from runner.proxy.remote import HttpRefusal, is_modern
from runner.proxy.upstream import ServerUnreachable, Upstream
from runner.proxy.upstreams import Upstreams
from runner.settings.isolation import ISOLATION_META, isolation_meta
from runner.steps.call_events import listener_of
from runner.steps.listener import CallListener, Client
from runner.steps.request import Request
from runner.toolset.catalog import ToolSpec

__all__ = ["RESULTS", "RemoteCall", "created_task", "reader_of", "remote_failure", "task_message"]

R = TypeVar("R")


RESULTS = ("content", "structuredContent", "isError")
"""The keys of a result that the output guard looks at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCall:
    """One `tools/call` for another server.

    Attributes:
        upstreams: The servers.
        ctx: The client's request.
        request: The call as the steps know it; the tool by the name that the client knows.
        server: The server.
        tool: The name that the tool has there.
        upstream: The connection to it.
        spec: The tool, if the server lists it.
        contract: Whether it is treated like a tool of our own.
    """

    upstreams: Upstreams
    ctx: ServerRequestContext[Any, Any]
    request: Request
    server: str
    tool: str
    upstream: Upstream
    spec: ToolSpec | None
    contract: Contract

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """Return the output schema that the server declares."""
        return self.upstream.schemas.get(self.tool)

    def admit(self) -> None:
        """Count the call against what its user may make in a minute.

        Raises:
            CallError: `E_BUSY`; there were that many already.
        """
        if not self._goes_on():
            self._count()

    def _goes_on(self) -> bool:
        """Return whether it was counted when it began, and goes on with the answer that it waited for."""
        state = str(self.request.params.get("requestState"))
        return self.upstreams.pausing.waits(state, self.request.user.name)

    def _count(self) -> None:
        self.upstreams.rates.admit(self.request.counted, now=time.monotonic())

    def listener(self, client: Client) -> CallListener:
        """Return who listens to it on behalf of its client.

        Args:
            client: The client, or what stands for it while it cannot be asked.
        """
        deadlines = self.upstreams.settings.deadlines(self.request.tool)
        return listener_of(self.upstreams, replace(self.request, client=client), self.request.tool, deadlines)

    async def reached(self, act: Callable[[Client], Awaitable[R]]) -> R | dict[str, Any]:
        """Return what `act` returns once the call has a place, or the question that the client gets first.

        Args:
            act: Does the call, however the eras of client and server let the server ask meanwhile.

        Raises:
            CallError: `E_BUSY`: too many calls wait.
            RemoteError: The server cannot be reached.
            MCPError: It answered with an error of JSON-RPC.
        """
        upstreams, request, client = self.upstreams, self.request, self.request.client
        user, params = request.user, request.params
        async with upstreams.admission.admit(user.segment, self.request.counted):
            # A server that has to start first is not silent: connecting has a limit of its own.
            modern = is_modern(await self.upstream.connected())
            request.steps.done("admit")
            waits = not (modern or has_sessions(self.ctx)) and self.upstream.announced.answers_questions
            if self._goes_on() and not waits:
                # It named a call of another server.
                self._count()
            if not waits:
                return await act(client)
            state = params.get("requestState")
            token = (params.get("_meta") or {}).get("progressToken")
            if state is not None:
                answers = params.get("inputResponses")
                going_on: R | dict[str, Any] = await upstreams.pausing.go_on(
                    str(state), answers, client, user.name, token=token
                )
                return going_on
            return await upstreams.pausing.run(act, client, user.name, token=token)

    async def send(self, listener: CallListener, **changed: Any) -> dict[str, Any]:
        """Return what the server answers, in the time that the call has.

        Args:
            listener: Who hears of it.
            changed: Params that are others than the client sent.

        Raises:
            CallError: `E_TIMEOUT`, or the server is being stopped.
            RemoteError: The server did not answer.
            MCPError: It answered with an error of JSON-RPC.
        """
        params = {**self.request.params, **changed, "name": self.tool}

        async def act(watched: WatchedListener) -> dict[str, Any]:
            send = partial(self.upstream.request, "tools/call", watched=watched)
            return await answered(send, params, watched.ask if has_sessions(self.ctx) else None)

        try:
            async with self.upstreams.drain.call(listener.tell):
                return await watch(act, listener)
        except CallError:
            if not self.upstream.busy and self.upstream.ends_with_its_connection:
                # It got the cancellation; a process that ignores it is killed and restarted.
                await self.upstream.drop()
            raise
        except asyncio.CancelledError:
            self.upstream.check_after_cancel()
            raise
        except MCPError as error:
            hint = self._hint(error.error.message)
            if hint is None:
                raise
            text = f"{error.error.message}\n{hint}"
            raise MCPError(code=error.error.code, message=text, data=error.error.data) from error
        finally:
            self.request.steps.done("run")

    async def linked(self, wire: Mapping[str, Any], guarded: GuardedCall) -> dict[str, Any]:
        """Return a result whose links to resources are written as clients know them, or read.

        What its blocks say in our name is left out.
        """
        reader, blocks, names = reader_of(self.upstreams, guarded), list[Any](), self.upstreams.names
        for block in wire.get("content", ()):
            if block["type"] == "resource":
                blocks.append({**block, "resource": names.block_outside(self.server, block["resource"])})
                continue
            if block["type"] != "resource_link":
                blocks.append(block)
                continue
            read = dict(block)
            if self.upstreams.guard.config.resources.auto_read_if_size_under_bytes:
                read = await self.upstream.resources.linked(await self.upstream.remote(), block, reader)
            outside = {"uri": names.uri_outside(self.server, str(block.get("uri")))}
            blocks += blocks_of({**read, **outside})
        meta = {"_meta": names.meta_outside(self.server, wire["_meta"])} if "_meta" in wire else {}
        return {**wire, "content": [_own(block) for block in blocks], **meta}

    def noted(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return a message with how its command is kept apart and, behind a failure, what may cure it."""
        way, params = self.upstreams.ways[self.server], dict(message)
        if way.tier is not None:
            params["_meta"] = {**(params.get("_meta") or {}), ISOLATION_META: isolation_meta(way.tier)}
        hint = self._hint("\n".join(_texts(params["content"]))) if params.get("isError") else None
        if hint:
            params["content"] = [*params["content"], {"type": "text", "text": hint}]
        return params

    def _hint(self, failure: str) -> str | None:
        """Return the option that would have helped; one that only may have is for the operator to hear of."""
        way = self.upstreams.ways[self.server]
        hint = way.hint(failure)
        if hint is None:
            way.note_failure(failure)
        return hint

    def tool_has_changed(self) -> CallError:
        """Return the error of a call that waited for its client while its tool got another contract."""
        return CallError(
            Code.E_CRASHED,
            f"The server {self.server} has changed its tool {self.tool!r} during the call; call it again",
        )

    def began(self, task: Mapping[str, Any]) -> None:
        """Note the task that the server has made of the call.

        Raises:
            CallError: `E_CRASHED`; a task of another server, begun by the same client, has that name.
        """
        name, upstreams = str(task["taskId"]), self.upstreams
        for other in upstreams.names.servers:
            if other != self.server and name in upstreams.upstream(self.ctx, self.request.user, other).tasks:
                raise CallError(
                    Code.E_CRASHED,
                    f"The server {self.server} has made a task of the call and named it {name!r}, as a task "
                    f"of the server {other} is named that was begun before; end that one, or call the tool "
                    "without a task",
                )
        self.upstream.began(name, self.tool)

    def guarded(self) -> GuardedCall:
        """Return it as the output guard knows it."""
        files = self.upstreams.files(self.request.user, trace=self.request.id)
        return GuardedCall(tool=self.tool, server=self.server, files=files, schema=self.schema)


def _own(block: Any) -> Any:
    """Return a content block, and the resource in it, without what only we may say in its `_meta`."""
    if not isinstance(block, Mapping):
        return block
    resource = block.get("resource")
    inner = {"resource": without_our_words(resource)} if isinstance(resource, Mapping) else {}
    return without_our_words({**block, **inner})


def _texts(blocks: Sequence[Any]) -> list[str]:
    texts = [block.get("text") for block in blocks if isinstance(block, Mapping)]
    return [text for text in texts if isinstance(text, str)]


def created_task(wire: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the task that a server has made of a call, if it has, in either era."""
    task = wire.get("task") if "task" in wire else wire if wire.get("resultType") == "task" else None
    # One without a name nobody could ask for, and clients' libraries fail at it.
    return task if isinstance(task, Mapping) and isinstance(task.get("taskId"), str) else None


def task_message(wire: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a client is told of a task that was begun: no result beside it, and no word in our name."""
    return legible_message({key: value for key, value in wire.items() if key not in RESULTS})


def reader_of(upstreams: Upstreams, call: GuardedCall) -> Reader:
    """Return what keeps what is read of resources during a call."""
    return Reader(
        store=call.files.library.store,
        scope=call.scope,
        on_kept=lambda records: upstreams.guard.kept(records, call),
    )


def remote_failure(error: RemoteError) -> CallError:
    """Return the error of a call that a server did not answer, or not by the protocol."""
    if isinstance(error, InvalidAnswer):
        return CallError(Code.E_INVALID_RESULT, f"The remote server is at fault: {error}")
    refusal = error.refusal if isinstance(error, ServerUnreachable) else error
    if isinstance(refusal, HttpRefusal):
        return refusal.failure
    code = Code.E_BUSY if isinstance(error, ServerUnreachable) else Code.E_CRASHED
    return CallError(code, f"The remote server did not answer: {error}")
