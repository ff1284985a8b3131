"""Questions that a server of the later era answers a request with, put to a client of the handshake era.

Such a server answers `input_required` and names what it wants to know; the request is sent again with the
answers. A client with sessions does not know that, but can be asked while its request is under way.

Source: MCP specification 2026-07-28, "Multi Round-Trip Requests".
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from runner.protocol.resource_tools import InvalidAnswer, RemoteError
from runner.steps.listener import CLIENT_REQUESTS, ClientRefusal

__all__ = ["answered"]

_MOST_ROUNDS = 20

Ask = Callable[[str, dict[str, Any]], Awaitable[Mapping[str, Any]]]


async def answered(
    send: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]], params: dict[str, Any], ask: Ask | None
) -> dict[str, Any]:
    """Return what a server answers to a request, once the client has answered its questions.

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
