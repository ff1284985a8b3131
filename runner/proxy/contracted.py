"""Calls of other servers' tools under the contract of our own: a `Call` that a server executes.

Source: requirements S0-19, S0-23, S0-70, S2-4; `docs/decisions/0033-one-spine-for-two-executors.md`.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mcp.shared.exceptions import MCPError

from runner.errors import CallError, Code
from runner.formats.json_size import least_chars
from runner.homes.homes import HomeLease
from runner.protocol.resource_tools import RemoteError
from runner.protocol.result_messages import ResultMessages
from runner.proxy.foreign_words import without_secrets
from runner.proxy.remote_call import RemoteCall, created_task, remote_failure, task_message
from runner.steps.call import Call
from runner.steps.listener import Client
from runner.steps.request import SHORT_BYTES, CallFiles, Completed, Executed, file_delivery_of, question_of
from runner.steps.rewriting import Inputs
from runner.store.protocol import Record
from runner.toolset.catalog import ToolSpec

__all__ = ["answer", "answer_of_task"]


@dataclass(slots=True, kw_only=True, eq=False)
class UpstreamCall(Call):
    """A call of a tool of another server, by the steps that a call of our own takes.

    Attributes:
        remote: What is known of the call and its server.
    """

    remote: RemoteCall

    passed_on: ClassVar[type[Exception]] = MCPError

    @classmethod
    def of(cls, remote: RemoteCall) -> "UpstreamCall":
        """Return a call for its own client."""
        listener = remote.listener(remote.request.client)
        return cls(
            service=remote.upstreams,
            request=remote.request,
            spec=remote.spec,
            listener=listener,
            remote=remote,
        )

    async def execute(self) -> Completed:
        """Admit the call, and have the server execute it once it has a place."""
        remote = self.remote
        remote.admit()
        try:
            done = await remote.reached(self._in_place)
        except RemoteError as error:
            raise remote_failure(error) from error
        if isinstance(done, Completed):
            return done
        interim = question_of(done)
        if interim is None and created_task(done) is not None:
            interim = task_message(done)
        if interim is None:
            raise remote.tool_has_changed()
        return Completed.for_now(interim, remote.spec)

    async def _in_place(self, client: Client) -> Completed:
        """Stage the inputs, have the server execute its tool, and collect what it returned.

        A command goes on running while its outputs are read. That harms nobody but itself:
        `runner.artifacts.named_file` opens them as those of an enemy.
        """
        remote, user, spec = self.remote, self.request.user, _spec(self.remote)
        locks = remote.upstreams.call_locks
        # While the client waits for its turn to answer, something else stands for it.
        self.listener = remote.listener(client)
        async with remote.upstreams.upkeep.in_use(user), remote.upstream.held_home() as home:
            place = await _place(remote, home)
            with locks.calling(user.segment):
                async with self.staged(spec, place) as inputs:
                    executed = await self._at_the_server(inputs)
                    return await self.collected(spec, place, executed)

    async def _at_the_server(self, inputs: Inputs) -> Executed:
        remote = self.remote
        tokens = tuple(token for place in inputs.names if (token := place.partition("token=")[2]))
        try:
            wire = await remote.send(self.listener, arguments=inputs.arguments)
        except MCPError as error:
            details = error.error
            message, data = (without_secrets(value, tokens) for value in (details.message, details.data))
            raise MCPError(code=details.code, message=message, data=data) from error
        self.request.steps.done("run")
        if tokens:
            wire = await asyncio.to_thread(without_secrets, wire, tokens)
        task = created_task(wire)
        if task is not None:
            remote.began(task)
            return Executed(wire=wire, interim=task_message(wire))
        wire = await remote.linked(wire, remote.guarded())
        return Executed(wire=wire, is_long=least_chars(wire, SHORT_BYTES) > SHORT_BYTES)


async def answer(call: RemoteCall, messages: ResultMessages) -> dict[str, Any]:
    """Return the result of a `tools/call`, by the steps that a call of our own takes.

    Raises:
        MCPError: The server answered with an error of JSON-RPC, which goes to the client as it is.
    """
    return await _message(call, await UpstreamCall.of(call).run(), messages)


async def answer_of_task(
    call: RemoteCall, wire: Mapping[str, Any], messages: ResultMessages
) -> dict[str, Any]:
    """Return the result of a call that a server made a task of, once it is there.

    Args:
        call: The call, as far as it is known by now.
        wire: What the server answers.
        messages: Makes the message.
    """
    spec = _spec(call)
    if spec.takes_files or spec.takes_links:
        # Which links it was given is forgotten by now.
        wire = await asyncio.to_thread(without_secrets, dict(wire))
    executed = Executed(wire=await call.linked(wire, call.guarded()))
    async with call.upstream.held_home() as home:
        completed = await UpstreamCall.of(call).collected(spec, await _place(call, home), executed)
    return await _message(call, completed, messages)


def _spec(call: RemoteCall) -> ToolSpec:
    """Return the tool; one that the server does not list declares nothing, and is given nothing of ours."""
    if call.spec is not None:
        return call.spec
    identity = call.upstreams.settings.username_parameter
    return ToolSpec(name=call.tool, parameters={}, output_schema=None, identity=identity)


async def _place(call: RemoteCall, home: HomeLease | None) -> CallFiles:
    """Return where the files of a call are: in the home of a command, or behind links for a far server."""
    upstreams, way, request = call.upstreams, call.upstreams.ways[call.server], call.request
    files = upstreams.files(request.user, trace=request.id)
    spec = _spec(call)
    delivery = file_delivery_of(upstreams.settings) if way.is_command else "url"
    takes_links = spec.takes_links or (spec.takes_files and delivery == "url")
    links = await upstreams.links_for(call.server) if takes_links else None

    def link(file: Record) -> str:
        if links is None:
            raise CallError(
                Code.E_NETWORK_DENIED,
                f"The server {call.server} cannot fetch the file {file.name!r}: this proxy has no address "
                "that it could reach. For the operator: set public_url to the one by which others reach it",
                details={"name": file.name, "server": call.server, "setting": "public_url"},
            )
        return links.to(files.holder, file.id)

    return CallFiles(files=files, inputs=home, outputs=home, link=link, file_delivery=delivery)


async def _message(call: RemoteCall, completed: Completed, messages: ResultMessages) -> dict[str, Any]:
    if completed.interim is not None:
        return dict(completed.interim)
    files = call.upstreams.files(call.request.user, trace=call.request.id)
    return call.noted(await messages.of(completed, call.request, files, tool=call.tool, server=call.server))
