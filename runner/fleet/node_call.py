"""One call on a worker node: run by the spine, in the sandbox of this machine, for a host somewhere else."""

import asyncio
import contextlib
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
from runner.fleet.far_state import FarState
from runner.fleet.listening import FarListener
from runner.fleet.messages import NodeMessage, SentCall, facts_of
from runner.fleet.results import ended, failed, noted, wire_failed
from runner.steps.listener import LOG_LEVELS, Nobody
from runner.steps.request import Request
from runner.toolset.toolset import Toolset
from runner.users.identity import User
from runner.worker.wire import WireError

__all__ = ["NodeCall", "Send", "Unwanted"]

log = logging.getLogger(__name__)

Send = Callable[[str, NodeMessage], Awaitable[None]]
"""Sends a host what is said of a call."""


class Unwanted(Exception):
    """A call may not begin any more: its host has given it to another node, or to nobody."""


@dataclass(slots=True, kw_only=True, eq=False)
class NodeCall:
    """One call.

    Attributes:
        record: What its host sent.
        toolset: What executes it.
        begin: Asks whether it may begin, and notes that it does.
        send: Sends its host what is said of it.
        state: Session state of its user.
        task: What runs it.
        silent: How often in a row Redis knew nothing of it.
    """

    record: SentCall
    toolset: Toolset
    begin: Callable[[SentCall], Awaitable[bool]]
    send: Send
    state: FarState
    task: "asyncio.Task[None] | None" = None
    silent: int = 0
    has_begun: bool = False
    _told: str = ""
    _questions: "dict[str, asyncio.Future[Mapping[str, object]]]" = field(default_factory=dict)

    async def tell_how_far(self) -> None:
        """Report to its host that it was taken, or has begun, once it has lasted for a moment."""
        far: Literal["took", "begun"] = "begun" if self.has_begun else "took"
        if far != self._told:
            self._told = far
            await self._say(far)

    async def run(self) -> None:
        """Run it, and tell its host how it ended."""
        record = self.record
        try:
            user, facts = User(record.user, record.session), facts_of(record)
        except Exception as error:  # noqa: BLE001 - a record of a host is checked, and its faults are told
            log.warning("a call was refused", extra={"call": record.call, "reason": str(error)})
            await self._say("refused")
            return
        request = Request(
            user=user,
            method=record.method,
            params=record.params,
            facts=facts,
            client=Nobody(),
            inline_max_bytes=NEVER_INLINE,
            # No client is asked whether it wants them: the host knows, and hears all.
            levels=LOG_LEVELS,
            is_awaited=record.is_awaited,
            id=record.call.partition(".")[0],
            begins=self._begins,
        )
        await self.state.fetch(user.segment, stays=record.stays)
        with contextlib.suppress(Unwanted):
            end = await self._end_of(request)
            await self.state.store(user.segment)
            await self._say("end", end)

    def answered(self, body: Mapping[str, Any]) -> None:
        """Take what the client has answered."""
        question = self._questions.pop(str(body.get("number")), None)
        reply: object = body.get("said")
        if question is not None and not question.done() and isinstance(reply, dict):
            question.set_result(reply)

    async def _end_of(self, request: Request) -> dict[str, Any]:
        """Return how it ended, as its host is told.

        Raises:
            Unwanted: It may not begin.
        """
        listener = self._listener(request)
        try:
            if self.record.is_tool:
                return ended(await execute_admitted(self.toolset, request, listener), request)
            answer = await relay(self.toolset, request, listener=listener)
            return {"answer": dict(answer), "fared": noted(request)}
        except Unwanted:
            raise
        except WireError as error:
            return wire_failed(error, request)
        except CallError as error:
            return failed(error, request)
        except asyncio.CancelledError:
            # Nobody waits for this, unless the node itself is ending.
            await asyncio.shield(self._say("end", failed(cancelled(), request)))
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the host gets an error of the contract
            return failed(unexpected(error, call=request.id), request)

    def _listener(self, request: Request) -> FarListener:
        tool = request.tool if self.record.is_tool else None
        return FarListener(
            client=request.client,
            params=request.params,
            levels=request.levels,
            deadlines=self.toolset.effective(tool).deadlines,
            user=request.user.segment,
            state=self.toolset.state,
            say=self._note,
            ask=self._ask,
        )

    async def _begins(self) -> None:
        """Request the right to begin; once if its zygote ended before.

        Raises:
            Unwanted: It may not.
        """
        if not self.has_begun and not await self.begin(self.record):
            raise Unwanted(self.record.call)
        self.has_begun = True

    async def _note(self, note: Mapping[str, Any]) -> None:
        await self._say("note", dict(note))

    async def _ask(self, request: Mapping[str, Any]) -> Mapping[str, object]:
        number = secrets.token_hex(8)
        question = self._questions[number] = asyncio.get_running_loop().create_future()
        try:
            await self._say("ask", {**request, "number": number})
            answer: Mapping[str, object] = await question
            return answer
        finally:
            self._questions.pop(number, None)

    async def _say(self, kind: Any, body: Mapping[str, Any] | None = None) -> None:
        message = NodeMessage(
            call=self.record.call, epoch=self.record.epoch, kind=kind, body=dict(body or {})
        )
        await self.send(self.record.host, message)
