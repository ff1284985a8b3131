"""Chat completions, as OpenAI has them and many others offer them: a turn as a request, an answer as events.

Source: OpenAI API reference, "Create chat completion" and "Streaming" of chat completions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.contract.loose_json import mapping_of
from runner.playground.loose_event import (
    error_text,
    json_of,
    object_of_json,
    objects_of,
    text_of,
    usage_event,
)
from runner.playground.model_names import ModelNames
from runner.playground.model_turn import (
    AssistantMessage,
    Event,
    Message,
    ToolMessage,
    ToolResult,
    Turn,
    UserMessage,
)

__all__ = ["PATH", "OpenAIAnswer", "body", "headers"]

PATH = "/chat/completions"

_DONE = "[DONE]"
_STOPS = {"stop": "end", "tool_calls": "calls", "function_call": "calls", "content_filter": "refused"}


def headers(key: str | None) -> dict[str, str]:
    """Return the headers that prove who asks."""
    return {} if key is None else {"authorization": f"Bearer {key}"}


def body(turn: Turn, names: ModelNames, max_tokens: int | None) -> dict[str, Any]:
    """Return the body of the request."""
    system = [{"role": "system", "content": turn.system}] if turn.system else []
    messages = [*system, *(part for message in turn.messages for part in _parts(message, names))]
    asked: dict[str, Any] = {
        "model": turn.model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if turn.tools:
        asked["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": names.to_model(tool.name),
                    "description": tool.description,
                    "parameters": tool.parameters,
                },
            }
            for tool in turn.tools
        ]
    if turn.temperature is not None:
        asked["temperature"] = turn.temperature
    if max_tokens is not None:
        asked["max_tokens"] = max_tokens
    return asked


def _parts(message: Message, names: ModelNames) -> Iterator[dict[str, Any]]:
    if isinstance(message, UserMessage):
        yield {"role": "user", "content": message.text}
    elif isinstance(message, AssistantMessage):
        yield from _answered(message, names)
    else:
        yield from _seen(message)


def _answered(message: AssistantMessage, names: ModelNames) -> Iterator[dict[str, Any]]:
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": names.to_model(call.name), "arguments": json_of(call.arguments)},
        }
        for call in message.calls
    ]
    if calls:
        yield {"role": "assistant", "content": message.text or None, "tool_calls": calls}
    elif message.text:
        yield {"role": "assistant", "content": message.text}


def _seen(message: ToolMessage) -> Iterator[dict[str, Any]]:
    for result in message.results:
        yield {"role": "tool", "tool_call_id": result.id, "content": result.text}
    # A result has text only; pictures come after all of them, as if the person showed them.
    pictures = [part for result in message.results for part in _pictures(result)]
    if pictures:
        yield {"role": "user", "content": pictures}


def _pictures(result: ToolResult) -> Iterator[dict[str, Any]]:
    if result.images:
        yield {"type": "text", "text": f"Pictures of the result of call {result.id}:"}
    for image in result.images:
        yield {"type": "image_url", "image_url": {"url": f"data:{image.mime};base64,{image.data}"}}


@dataclass(slots=True)
class _Asked:
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class OpenAIAnswer:
    """An answer while it comes.

    Attributes:
        names: The names of the tools.
    """

    names: ModelNames
    _calls: dict[Any, _Asked] = field(default_factory=dict)
    _stop: str | None = None
    _model: str | None = None
    _done: bool = False

    def read(self, data: str) -> Iterator[Event]:
        """Yield what an event of the stream says. Raises `ValueError` where it is none of this API."""
        if data.strip() == _DONE:
            self._done = True
            return
        chunk = object_of_json(data)
        if chunk.get("error") is not None:
            yield {"type": "error", "error": error_text(chunk)}
            self._done = True
            return
        if "choices" not in chunk:
            raise ValueError("no choices")
        self._model = self._model or text_of(chunk.get("model"))
        for choice in objects_of(chunk["choices"])[:1]:
            yield from self._delta(mapping_of(choice.get("delta")))
            self._stop = text_of(choice.get("finish_reason")) or self._stop
        usage = mapping_of(chunk.get("usage"))
        if usage:
            yield _usage(usage)

    def end(self) -> Iterator[Event]:
        """Yield what is known once the stream has ended; nothing where it broke off."""
        if not self._done and self._stop is None:
            return
        for place, call in enumerate(self._calls.values()):
            yield {
                "type": "call",
                "id": call.id or f"call_{place}",
                "name": self.names.from_model(call.name),
                "arguments": call.arguments,
            }
        said = self._stop or "stop"
        stop = "calls" if self._calls and said != "length" else _STOPS.get(said, said)
        yield {"type": "end", "stop": stop, "model": self._model}

    def _delta(self, delta: Mapping[str, Any]) -> Iterator[Event]:
        # Two spellings of what a model thinks aloud; neither is OpenAI's own.
        thinking = text_of(delta.get("reasoning_content")) or text_of(delta.get("reasoning"))
        if thinking:
            yield {"type": "thinking", "text": thinking}
        if text := text_of(delta.get("content")) or text_of(delta.get("refusal")):
            yield {"type": "text", "text": text}
        for part in objects_of(delta.get("tool_calls")):
            yield from self._call(part)

    def _call(self, part: Mapping[str, Any]) -> Iterator[Event]:
        # Some endpoints number no calls, and send each whole.
        place = part.get("index")
        key = place if isinstance(place, int) else part.get("id", len(self._calls))
        function = mapping_of(part.get("function"))
        if not isinstance(key, int | str):
            raise ValueError("a call without a place")  # noqa: TRY004 - what is wrong is the text
        is_new = key not in self._calls
        call = self._calls.setdefault(key, _Asked())
        call.id = call.id or text_of(part.get("id"))
        call.name = call.name or text_of(function.get("name"))
        given = function.get("arguments")
        call.arguments += json_of(given) if isinstance(given, dict) else text_of(given)
        if is_new:
            yield {"type": "calling", "name": self.names.from_model(call.name)}


def _usage(usage: Mapping[str, Any]) -> Event:
    cached = mapping_of(usage.get("prompt_tokens_details")).get("cached_tokens")
    return usage_event(usage.get("prompt_tokens"), usage.get("completion_tokens"), cached)
