"""Questions from servers to clients of the other protocol era.

In the later era, a server returns a question as the result of a request, and the client repeats the request
with the answer. For a client with sessions, `answered` repeats it, and sends the client the question during
its request. A server of the handshake era sends a question during a call. For a client of the later era,
`Pausing` keeps the call waiting, and returns the question with an opaque name of the call.

Source: MCP specification 2026-07-28, "Multi Round-Trip Requests", and 2025-11-25, "Elicitation", "Sampling"
and "Roots".
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import mcp_types
from mcp.shared.exceptions import MCPError

from runner.contract.error_messages import stopped
from runner.errors import CallError
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
        ask: Sends a question to the client; None if the client gets questions as results.

    Raises:
        InvalidAnswer: The server sent too many questions, or one of an unknown kind.
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
        answers: dict[str, Any] = {}
        for number, question in questions.items():
            members = question if isinstance(question, Mapping) else {}
            method, details = members.get("method"), members.get("params")
            if method not in CLIENT_REQUESTS:
                raise InvalidAnswer(f"it asked for {method!r}, which no client is asked")
            try:
                answer = await ask(str(method), dict(details) if isinstance(details, Mapping) else {})
            except ClientRefusal as refusal:
                raise RemoteError(f"the client did not answer {method}: {refusal}") from refusal
            answers[number] = dict(answer)
        state = {"requestState": result["requestState"]} if "requestState" in result else {}
        result = await send({**params, "inputResponses": answers, **state})
    raise InvalidAnswer(f"it asked {_MOST_ROUNDS} times for more")


ANSWER_S = 600.0
"""Seconds that a client may take to answer a server's request."""

_MOST_OF_A_USER = 16
_MOST_HELD = 1000

_Event = tuple[str, Mapping[str, Any]]
_ASKED: _Event = ("", {})


@dataclass(slots=True, eq=False)
class _Call:
    """A call in flight, as a stand-in for its client. A `runner.steps.listener.Client`.

    Attributes:
        user: Name of the user.
        answer_s: Time limit of an answer, in seconds.
        name: Opaque name of the call for the client.
        task: The task that runs it.
        questions: Open questions by number, each with the future of its answer.
        events: For the client, in order: notifications, `_ASKED` for a question, None for the end.
        expiry: Timer that ends the call if the client does not return; None while a request is in flight.
    """

    user: str
    answer_s: float
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    task: "asyncio.Task[Any]" = field(init=False)
    questions: "dict[str, tuple[dict[str, Any], asyncio.Future[dict[str, Any]]]]" = field(
        default_factory=dict
    )
    events: "asyncio.Queue[_Event | None]" = field(default_factory=asyncio.Queue)
    expiry: asyncio.TimerHandle | None = None

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Queue a notification for the client; drop it if the queue is full."""
        if self.events.qsize() < _MOST_HELD:
            self.events.put_nowait((method, params))

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Queue a question for the client, and wait for the answer in its next request."""
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


@dataclass(slots=True, kw_only=True, eq=False)
class Pausing:
    """Calls of all users that wait for an answer.

    Attributes:
        answer_s: Time limit of an answer, in seconds.
    """

    answer_s: float = ANSWER_S
    _calls: dict[str, _Call] = field(default_factory=dict)
    _is_stopping: bool = False

    def waits(self, name: str, user: str) -> bool:
        """Return whether a call of that name waits for an answer from this user."""
        call = self._calls.get(name)
        return call is not None and call.user == user and call.expiry is not None

    async def run(
        self,
        act: Callable[[Client], Coroutine[Any, Any, Any]],
        client: Client,
        user: str,
        *,
        state: object = None,
        answers: object = None,
        token: str | int | None = None,
    ) -> Any:
        """Return the result of a call, or its next question as a result of the later era.

        A call with a question is kept for its client's next request, which first gets the notifications that
        were queued meanwhile.

        Args:
            act: The call; it has started if `state` is given.
            client: The client.
            user: Name of the user.
            state: Name of the call that the request resumes, if any.
            answers: The answers to its questions.
            token: The progress token of the client's request.

        Raises:
            MCPError: No call of that name waits for this user.
            CallError: `E_CANCELLED`: it has a question, and the server is being stopped.
        """
        if state is None:
            call = _Call(user, self.answer_s)
            call.task = asyncio.create_task(act(call))
            call.task.add_done_callback(lambda _task: call.events.put_nowait(None))
            self._calls[call.name] = call
        elif self.waits(str(state), user):
            call = self._calls[str(state)]
            if (expiry := call.expiry) is not None:
                expiry.cancel()
            call.expiry = None
            for number, reply in (answers if isinstance(answers, Mapping) else {}).items():
                _, answer = call.questions.get(number, (None, None))
                if answer is not None and not answer.done() and isinstance(reply, Mapping):
                    answer.set_result(dict(reply))
            # Unanswered questions are sent again.
            call.events.put_nowait(_ASKED)
        else:
            message = "the call no longer waits for an answer; call the tool again"
            raise MCPError(code=mcp_types.INVALID_PARAMS, message=message)
        try:
            while (event := await call.events.get()) is not None:
                method, params = event
                left = {key: each for key, (each, answer) in call.questions.items() if not answer.done()}
                if event is _ASKED and left:
                    if self._is_stopping:
                        raise stopped()
                    loop = asyncio.get_running_loop()
                    call.expiry = loop.call_later(2 * self.answer_s, self._give_up, call)
                    waiting = [each for each in self._calls.values() if each.user == user and each.expiry]
                    for oldest in waiting[:-_MOST_OF_A_USER]:
                        self._give_up(oldest)
                    result = {"resultType": "input_required", "inputRequests": left}
                    return {**result, "requestState": call.name}
                if method == PROGRESS and token is not None:
                    # The request with the original token may have ended with a question.
                    await contained(client.notify(method, {**params, "progressToken": token}))
                elif method != PROGRESS and event is not _ASKED:
                    await contained(client.notify(method, params))
            self._calls.pop(call.name, None)
            return call.task.result()
        except (asyncio.CancelledError, CallError):
            self._calls.pop(call.name, None)
            call.task.cancel()
            await asyncio.wait({call.task})
            raise

    def stop(self) -> None:
        """End the calls that wait for an answer, which may never arrive, and later ones that would."""
        self._is_stopping = True
        for call in [*self._calls.values()]:
            self._give_up(call)

    async def close(self) -> None:
        """Cancel all calls."""
        tasks = [call.task for call in self._calls.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _give_up(self, call: _Call) -> None:
        if call.expiry is not None and self._calls.pop(call.name, None) is not None:
            call.expiry.cancel()
            call.task.cancel()
            # asyncio logs an exception that is never retrieved.
            call.task.add_done_callback(lambda task: task.cancelled() or task.exception())
