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
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import mcp_types
from mcp.shared.exceptions import MCPError

from runner.protocol.resource_tools import InvalidAnswer, RemoteError
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


@dataclass(slots=True, eq=False)
class _Call:
    """A call in flight, in place of its client. A `runner.steps.listener.Client`.

    Attributes:
        user: Name of the user.
        client: The client while one of its requests is in flight.
        token: Progress token of that request; None if it wants no progress.
        answer_s: Time limit of an answer, in seconds.
        name: Opaque name of the call for the client.
        task: The task that runs it.
        questions: Open questions by number.
        answers: Future answers by number.
        has_question: Set while there is a question that the client has not received.
        held: Notifications that the client has not received, the oldest first.
        telling: Lock that keeps the notifications in order.
        expiry: Ends the call if the client does not send its request again.
    """

    user: str
    client: Client | None
    token: str | int | None
    answer_s: float
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    task: "asyncio.Task[Any]" = field(init=False)
    questions: dict[str, dict[str, Any]] = field(default_factory=dict)
    answers: dict[str, "asyncio.Future[dict[str, Any]]"] = field(default_factory=dict)
    has_question: asyncio.Event = field(default_factory=asyncio.Event)
    held: "deque[tuple[str, Mapping[str, Any]]]" = field(default_factory=lambda: deque(maxlen=_MOST_HELD))
    telling: asyncio.Lock = field(default_factory=asyncio.Lock)
    expiry: asyncio.TimerHandle | None = None

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send to the client, once it listens."""
        self.held.append((method, params))
        await self.catch_up()

    async def catch_up(self) -> None:
        """Send the client the held notifications; return once all of them were sent."""
        async with self.telling:
            while self.held and self.client is not None:
                method, params = self.held.popleft()
                if method != PROGRESS:
                    await self.client.notify(method, params)
                elif self.token is not None:
                    # The request under whose token it was reported may have ended with a question.
                    await self.client.notify(method, {**params, "progressToken": self.token})

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send the client a request after its own has ended, and wait until it returns."""
        number = f"q{uuid.uuid4().hex[:8]}"
        self.questions[number] = {"method": method, "params": dict(params)}
        self.answers[number] = asyncio.get_running_loop().create_future()
        self.has_question.set()
        try:
            return await asyncio.wait_for(self.answers[number], self.answer_s)
        except TimeoutError:
            words = f"the client did not answer within {self.answer_s:.0f} s"
            raise ClientRefusal(mcp_types.REQUEST_TIMEOUT, words) from None
        finally:
            del self.questions[number], self.answers[number]

    def open_questions(self) -> dict[str, dict[str, Any]]:
        """Return the questions without an answer."""
        return {
            number: question for number, question in self.questions.items() if not self.answers[number].done()
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
        return call is not None and call.user == user and call.client is None

    async def run(
        self,
        act: Callable[[Client], Awaitable[R]],
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
        call = _Call(user, client, token, self.answer_s)
        call.task = asyncio.create_task(_awaited(act(call)))
        self._calls[call.name] = call
        done: R | dict[str, Any] = await self._next(call)
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
        if call is None or call.user != user or call.client is not None:
            message = "the call no longer waits for an answer; call the tool again"
            raise MCPError(code=mcp_types.INVALID_PARAMS, message=message)
        call.client, call.token = client, token
        if call.expiry is not None:
            call.expiry.cancel()
        for number, answer in (answers if isinstance(answers, Mapping) else {}).items():
            future = call.answers.get(number)
            if future is not None and not future.done() and isinstance(answer, Mapping):
                future.set_result(dict(answer))
        if call.open_questions():
            call.has_question.set()
        return await self._next(call)

    async def close(self) -> None:
        """End all calls that wait."""
        tasks = [call.task for call in self._calls.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _next(self, call: _Call) -> Any:
        try:
            await call.catch_up()
            while not call.task.done():
                question = asyncio.ensure_future(call.has_question.wait())
                try:
                    await asyncio.wait({call.task, question}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    question.cancel()
                call.has_question.clear()
                questions = call.open_questions()
                if questions and not call.task.done():
                    self._let_wait(call)
                    # After the question the client no longer reads this stream.
                    await call.catch_up()
                    return {
                        "resultType": "input_required",
                        "inputRequests": questions,
                        "requestState": call.name,
                    }
            self._calls.pop(call.name, None)
            return call.task.result()
        except asyncio.CancelledError:
            self._calls.pop(call.name, None)
            call.task.cancel()
            await asyncio.wait({call.task})
            raise

    def _let_wait(self, call: _Call) -> None:
        call.client = None
        call.expiry = asyncio.get_running_loop().call_later(2 * self.answer_s, self._give_up, call)
        waiting = [
            other for other in self._calls.values() if other.user == call.user and other.client is None
        ]
        for oldest in waiting[:-_MOST_OF_A_USER]:
            self._give_up(oldest)

    def _give_up(self, call: _Call) -> None:
        """End a call to which the client has not come back."""
        if call.client is None and self._calls.pop(call.name, None) is not None:
            call.task.cancel()
            # asyncio logs an exception that is never retrieved.
            call.task.add_done_callback(lambda task: task.cancelled() or task.exception())


async def _awaited(result: Awaitable[R]) -> R:
    return await result
