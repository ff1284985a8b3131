"""Questions of servers to clients of the other era of the protocol.

In the later era a server's question is the answer to a request, which the client sends again with what it
was asked for. For a client with sessions `answered` does that, since such a client can be asked during its
request. A server of the handshake era asks in the middle of a call. For a client of the later era the call
goes on waiting in `Pausing`, while the client gets the question and an opaque name of the call.

Source: MCP specification 2026-07-28, "Multi Round-Trip Requests", and 2025-11-25, "Elicitation", "Sampling"
and "Roots".
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import mcp_types
from mcp.shared.exceptions import MCPError

from runner.protocol.resource_tools import InvalidAnswer, RemoteError
from runner.proxy.remote import contained
from runner.steps.listener import CLIENT_REQUESTS, PROGRESS, Client, ClientRefusal

__all__ = ["ANSWER_S", "Pausing", "answered"]

_MOST_ROUNDS = 20

Ask = Callable[[str, dict[str, Any]], Awaitable[Mapping[str, Any]]]


async def answered(
    send: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]], params: dict[str, Any], ask: Ask | None
) -> dict[str, Any]:
    """Return the server's answer to a request, after the client has answered its questions.

    Args:
        send: Sends the request with these params.
        params: The params of the client.
        ask: Asks the client; None: the client answers by itself, and gets the questions.

    Raises:
        InvalidAnswer: The server does not stop asking, or asks what no client is asked.
        RemoteError: The client did not answer.
    """
    result = await send(params)
    if ask is None:
        return result
    for _round in range(_MOST_ROUNDS):
        questions = result.get("inputRequests")
        if result.get("resultType") != "input_required":
            return result
        if questions is None and "requestState" in result:
            questions = {}
        if not isinstance(questions, Mapping):
            raise InvalidAnswer("it asked for input, and did not say for which")
        answers = {number: await _answer(ask, question) for number, question in questions.items()}
        more: dict[str, Any] = {"inputResponses": answers}
        if "requestState" in result:
            more["requestState"] = result["requestState"]
        result = await send({**params, **more})
    raise InvalidAnswer(f"it asked {_MOST_ROUNDS} times for more")


async def _answer(ask: Ask, question: object) -> dict[str, Any]:
    method = question.get("method") if isinstance(question, Mapping) else None
    if not isinstance(question, Mapping) or method not in CLIENT_REQUESTS:
        raise InvalidAnswer(f"it asked for {method!r}, which no client is asked")
    params = question.get("params")
    try:
        return dict(await ask(str(method), dict(params) if isinstance(params, Mapping) else {}))
    except ClientRefusal as refusal:
        raise RemoteError(f"the client did not answer {method}: {refusal}") from refusal


ANSWER_S = 600.0
"""Seconds that a client may take to answer a server's request."""

_MOST_OF_A_USER = 16
_MOST_HELD = 1000

R = TypeVar("R")


_Event = tuple[str, Mapping[str, Any]]

_ASKED: _Event = ("", {})


@dataclass(slots=True, eq=False)
class _Call:
    """A call in flight, in place of its client. A `runner.steps.listener.Client`.

    Attributes:
        user: Name of the user.
        answer_s: Time limit of an answer, in seconds.
        name: Opaque name of the call for the client.
        task: The task that runs it.
        questions: Open questions by number, each with its future answer.
        events: For the client, in order: notifications, `_ASKED` for a question, None for the end.
        waits: Whether the client has a question, and none of its requests is in flight.
        expiry: Ends the call if the client does not send its request again.
    """

    user: str
    answer_s: float
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    task: "asyncio.Task[Any]" = field(init=False)
    questions: "dict[str, tuple[dict[str, Any], asyncio.Future[dict[str, Any]]]]" = field(
        default_factory=dict
    )
    events: "asyncio.Queue[_Event | None]" = field(default_factory=asyncio.Queue)
    waits: bool = False
    expiry: asyncio.TimerHandle | None = None

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Queue a notification for the client; it is dropped if too many are."""
        if self.events.qsize() < _MOST_HELD:
            self.events.put_nowait((method, params))

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send the client a request after its own has ended, and wait until it returns."""
        number = f"q{uuid.uuid4().hex[:8]}"
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.questions[number] = ({"method": method, "params": dict(params)}, answer)
        self.events.put_nowait(_ASKED)
        try:
            return await asyncio.wait_for(answer, self.answer_s)
        except TimeoutError:
            words = f"the client did not answer within {self.answer_s:.0f} s"
            raise ClientRefusal(mcp_types.REQUEST_TIMEOUT, words) from None
        finally:
            del self.questions[number]

    def open_questions(self) -> dict[str, dict[str, Any]]:
        """Return the questions without an answer."""
        return {
            number: question for number, (question, answer) in self.questions.items() if not answer.done()
        }


@dataclass(slots=True, kw_only=True, eq=False)
class Pausing:
    """Calls of all users that wait for an answer.

    Attributes:
        answer_s: Time limit of an answer, in seconds.
    """

    answer_s: float = ANSWER_S
    _calls: dict[str, _Call] = field(default_factory=dict)

    def waits(self, name: str, user: str) -> bool:
        """Return whether a call of that name waits for an answer of this user."""
        call = self._calls.get(name)
        return call is not None and call.user == user and call.waits

    async def run(
        self,
        act: Callable[[Client], Coroutine[Any, Any, R]],
        client: Client,
        user: str,
        *,
        token: str | int | None = None,
    ) -> R | dict[str, Any]:
        """Return the result of `act`, or its first question as a result of the later era.

        Args:
            act: The call.
            client: The client.
            user: Name of the user.
            token: The progress token of the client's request.
        """
        call = _Call(user, self.answer_s)
        call.task = asyncio.create_task(act(call))
        call.task.add_done_callback(lambda _task: call.events.put_nowait(None))
        self._calls[call.name] = call
        done: R | dict[str, Any] = await self._next(call, client, token)
        return done

    async def go_on(
        self, name: str, answers: object, client: Client, user: str, *, token: str | int | None = None
    ) -> Any:
        """Give a call the answers that it waits for; return what `run` returns.

        Notifications that were held meanwhile are sent first.

        Raises:
            MCPError: No call of that name waits for this user.
        """
        call = self._calls.get(name)
        if call is None or not self.waits(name, user):
            message = "the call no longer waits for an answer; call the tool again"
            raise MCPError(code=mcp_types.INVALID_PARAMS, message=message)
        call.waits = False
        if call.expiry is not None:
            call.expiry.cancel()
        for number, reply in (answers if isinstance(answers, Mapping) else {}).items():
            if number in call.open_questions() and isinstance(reply, Mapping):
                call.questions[number][1].set_result(dict(reply))
        if call.open_questions():
            call.events.put_nowait(_ASKED)
        return await self._next(call, client, token)

    async def close(self) -> None:
        """End all calls that wait."""
        tasks = [call.task for call in self._calls.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _next(self, call: _Call, client: Client, token: str | int | None) -> Any:
        """Send the client the notifications of a call until its end or its next question; return that."""
        try:
            while (event := await call.events.get()) is not None:
                method, params = event
                if event is _ASKED:
                    if questions := call.open_questions():
                        self._let_wait(call)
                        return {
                            "resultType": "input_required",
                            "inputRequests": questions,
                            "requestState": call.name,
                        }
                elif method != PROGRESS:
                    await contained(client.notify(method, params))
                elif token is not None:
                    # The request under whose token it was reported may have ended with a question.
                    await contained(client.notify(method, {**params, "progressToken": token}))
            self._calls.pop(call.name, None)
            return call.task.result()
        except asyncio.CancelledError:
            self._calls.pop(call.name, None)
            call.task.cancel()
            await asyncio.wait({call.task})
            raise

    def _let_wait(self, call: _Call) -> None:
        call.waits = True
        call.expiry = asyncio.get_running_loop().call_later(2 * self.answer_s, self._give_up, call)
        waiting = [other for other in self._calls.values() if other.user == call.user and other.waits]
        for oldest in waiting[:-_MOST_OF_A_USER]:
            self._give_up(oldest)

    def _give_up(self, call: _Call) -> None:
        """End a call to which the client has not come back."""
        if call.waits and self._calls.pop(call.name, None) is not None:
            call.task.cancel()
            # asyncio logs an exception that is never retrieved.
            call.task.add_done_callback(lambda task: task.cancelled() or task.exception())
