"""One call that a worker node executes in its sandbox for a host on another machine."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from runner.artifacts.route import NEVER_INLINE
from runner.call import execute_admitted, relay
from runner.contract.error_messages import cancelled
from runner.contract.unexpected_errors import unexpected
from runner.errors import CallError
from runner.fleet.messages import NOTICE, NodeMessage, SentCall
from runner.fleet.results import parts_of, report
from runner.fleet.shared_state import SharedState
from runner.steps.listener import CLIENT_REQUESTS, LOG_LEVELS, CallListener, Nobody
from runner.steps.request import Request
from runner.toolset.toolset import Toolset
from runner.users.identity import User
from runner.worker.wire import RequestFacts, WireError

__all__ = ["NodeCall", "Send"]

log = logging.getLogger(__name__)

Send = Callable[[str, NodeMessage], Awaitable[None]]
"""Sends a message about a call to the host that owns it."""


class Unwanted(Exception):
    """A call may not begin any more: its host has given it to another node, or to nobody."""


@dataclass(slots=True, kw_only=True)
class _RemoteListener(CallListener):
    """Receives the notifications and requests of one call on a node, and sends them to the call's host.

    Attributes:
        call: The call.
    """

    call: "NodeCall"

    async def notify(self, value: Mapping[str, object]) -> None:
        """Send a worker's notification. The host decides what of it its client gets."""
        value = self.masked(value)
        # The last thing that a tool said before it fell silent is part of its error.
        await CallListener.notify(self, value)
        await self.call.say("note", {"method": value.get("method"), "params": value.get("params")})

    async def request(self, value: Mapping[str, object]) -> Mapping[str, object]:
        """Answer a worker's request, or have the client answer it."""
        if value.get("method") not in CLIENT_REQUESTS:
            return await CallListener.request(self, value)
        value = self.masked(value)
        return await self.call.ask({"method": value["method"], "params": value.get("params")})

    async def tell(self, text: str) -> None:
        """Send a notice to the client through the host."""
        self.notices.append(text)
        await self.call.say("note", {"method": NOTICE, "params": {"message": text}})


@dataclass(slots=True, kw_only=True, eq=False)
class NodeCall:
    """One call.

    Attributes:
        record: The record that its host sent.
        toolset: The tools.
        begin: Returns whether it may begin, and keeps its host from taking it back.
        send: Sends its host a message.
        state: Session state of its user.
        task: The task that runs it.
        silent: In how many beats in a row its host was not there.
        has_started: Whether its code has started.
    """

    record: SentCall
    toolset: Toolset
    begin: Callable[[SentCall], Awaitable[bool]]
    send: Send
    state: SharedState
    task: "asyncio.Task[None] | None" = None
    silent: int = 0
    has_started: bool = False
    _questions: "dict[str, asyncio.Future[Mapping[str, object]]]" = field(default_factory=dict)

    def cancel(self) -> None:
        """End it."""
        if self.task is not None:
            self.task.cancel()

    async def run(self) -> None:
        """Run it, and report its end to its host."""
        record = self.record
        try:
            facts, headers = dict(record.facts), record.facts.get("headers")
            if headers is not None:
                facts["headers"] = [(str(name), str(value)) for name, value in headers]
            user, known = User(record.user, record.session), RequestFacts(**facts)
        except Exception as error:  # noqa: BLE001 - a malformed record of a host is refused
            log.warning("fleet call refused", extra={"call": record.call, "reason": str(error)})
            await self.say("refused")
            return
        request = Request(
            user=user,
            method=record.method,
            params=record.params,
            facts=known,
            client=Nobody(),
            inline_max_bytes=NEVER_INLINE,
            # All levels: the host filters them for its client.
            levels=LOG_LEVELS,
            is_awaited=record.is_awaited,
            id=record.call.partition(".")[0],
            begins=self._begins,
        )
        await self.state.fetch(user.segment)
        try:
            end = await self._end_of(request)
        except Unwanted:
            await self.say("refused")
            return
        except asyncio.CancelledError:
            # For a host that has cancelled it this is too late; another host gets it when this node stops.
            end = report(request, **parts_of(cancelled()))
            await asyncio.shield(self.say("end", end) if self.has_started else self.say("refused"))
            raise
        await self.state.store(user.segment)
        await self.say("end", end)

    def answered(self, body: Mapping[str, Any]) -> None:
        """Take what the client has answered."""
        question = self._questions.pop(str(body.get("number")), None)
        reply: object = body.get("said")
        if question is not None and not question.done() and isinstance(reply, dict):
            question.set_result(reply)

    async def _end_of(self, request: Request) -> dict[str, Any]:
        """Execute the call and return the report of its end.

        Raises:
            Unwanted: It may not begin.
        """
        tool = request.tool if self.record.is_tool else None
        listener = _RemoteListener(
            client=request.client,
            params=request.params,
            levels=request.levels,
            deadlines=self.toolset.effective(tool).deadlines,
            user=request.user.segment,
            state=self.toolset.state,
            call=self,
        )
        try:
            if self.record.is_tool:
                completed = await execute_admitted(self.toolset, request, listener)
                return report(request, **parts_of(completed))
            return report(request, answer=await relay(self.toolset, request, listener=listener))
        except Unwanted:
            raise
        except WireError as error:
            return report(request, wire_error=error.error)
        except CallError as error:
            return report(request, **parts_of(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the host gets an error of the contract
            return report(request, **parts_of(unexpected(error, call=request.id)))

    async def _begins(self) -> None:
        """Request the right to begin; once if its zygote ended before.

        Raises:
            Unwanted: It may not.
        """
        if not self.has_started and not await self.begin(self.record):
            raise Unwanted(self.record.call)
        self.has_started = True

    async def ask(self, request: Mapping[str, Any]) -> Mapping[str, object]:
        """Send the client a request through the host, and return its answer."""
        number = secrets.token_hex(8)
        question = self._questions[number] = asyncio.get_running_loop().create_future()
        try:
            await self.say("ask", {**request, "number": number})
            answer: Mapping[str, object] = await question
            return answer
        finally:
            self._questions.pop(number, None)

    async def say(
        self, kind: Literal["note", "ask", "end", "refused"], body: Mapping[str, Any] | None = None
    ) -> None:
        """Send the host a message."""
        await self.send(
            self.record.host, NodeMessage(call=self.record.call, kind=kind, body=dict(body or {}))
        )
