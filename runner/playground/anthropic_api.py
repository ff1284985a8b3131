"""Messages, as Anthropic has them and others offer them: a turn as a request, an answer as events.

Source: Anthropic API reference, "Messages" (version 2023-06-01), "Streaming messages", "Errors".
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.contract.loose_json import mapping_of
from runner.playground.loose_event import (
    error_text,
    json_of,
    object_of_json,
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

__all__ = ["PATH", "AnthropicAnswer", "body", "headers"]

PATH = "/messages"

_VERSION = "2023-06-01"
# This API wants a number.
_MAX_TOKENS = 4096
_STOPS = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "calls",
    "max_tokens": "length",
    "refusal": "refused",
}


def headers(key: str | None) -> dict[str, str]:
    """Return the headers that prove who asks."""
    return {"anthropic-version": _VERSION} | ({} if key is None else {"x-api-key": key})


def body(turn: Turn, names: ModelNames, max_tokens: int | None) -> dict[str, Any]:
    """Return the body of the request."""
    said = [(_role(message), _content(message, names)) for message in turn.messages]
    asked: dict[str, Any] = {
        "model": turn.model,
        "max_tokens": max_tokens or _MAX_TOKENS,
        "messages": [{"role": role, "content": content} for role, content in said if content],
        "stream": True,
    }
    if turn.system:
        asked["system"] = turn.system
    if turn.tools:
        asked["tools"] = [
            {
                "name": names.to_model(tool.name),
                "description": tool.description,
                "input_schema": {"type": "object"} | dict(tool.parameters),
            }
            for tool in turn.tools
        ]
    if turn.temperature is not None:
        # Its scale ends at 1.
        asked["temperature"] = min(turn.temperature, 1.0)
    return asked


def _role(message: Message) -> str:
    return "assistant" if isinstance(message, AssistantMessage) else "user"


def _content(message: Message, names: ModelNames) -> list[dict[str, Any]]:
    if isinstance(message, UserMessage):
        return [{"type": "text", "text": message.text}]
    if isinstance(message, ToolMessage):
        return [_result(result) for result in message.results]
    # An empty text is refused.
    text = [{"type": "text", "text": message.text}] if message.text.strip() else []
    calls = (
        {"type": "tool_use", "id": call.id, "name": names.to_model(call.name), "input": call.arguments}
        for call in message.calls
    )
    return [*text, *calls]


def _result(result: ToolResult) -> dict[str, Any]:
    text = [{"type": "text", "text": result.text}] if result.text.strip() else []
    images = (
        {"type": "image", "source": {"type": "base64", "media_type": image.mime, "data": image.data}}
        for image in result.images
    )
    error = {"is_error": True} if result.is_error else {}
    return {"type": "tool_result", "tool_use_id": result.id, "content": [*text, *images], **error}


@dataclass(slots=True)
class _Asked:
    id: str
    name: str
    input: Mapping[str, Any]
    arguments: str = ""


@dataclass(slots=True)
class AnthropicAnswer:
    """An answer while it comes.

    Attributes:
        names: The names of the tools.
    """

    names: ModelNames
    _calls: dict[int, _Asked] = field(default_factory=dict)
    _read: int | None = None
    _cached: int | None = None
    _stop: str | None = None
    _model: str | None = None
    _done: bool = False

    def read(self, data: str) -> Iterator[Event]:
        """Yield what an event of the stream says. Raises `ValueError` where it is none of this API."""
        said = object_of_json(data)
        match said.get("type"):
            case "message_start":
                self._begun(mapping_of(said.get("message")))
            case "content_block_start":
                yield from self._block(said)
            case "content_block_delta":
                yield from self._delta(said)
            case "message_delta":
                self._stop = text_of(mapping_of(said.get("delta")).get("stop_reason")) or self._stop
                usage = mapping_of(said.get("usage"))
                yield usage_event(self._read, usage.get("output_tokens"), self._cached)
            case "message_stop":
                self._done = True
            case "error":
                yield {"type": "error", "error": error_text(said)}
                self._done = True
            case str():
                # There may be more kinds of them, which are passed over.
                return
            case _:
                raise ValueError("no type")

    def end(self) -> Iterator[Event]:
        """Yield what is known once the stream has ended; nothing where it broke off."""
        if not self._done:
            return
        for call in self._calls.values():
            yield {
                "type": "call",
                "id": call.id,
                "name": self.names.from_model(call.name),
                "arguments": call.arguments or json_of(call.input),
            }
        said = self._stop or "end_turn"
        yield {"type": "end", "stop": _STOPS.get(said, said), "model": self._model}

    def _begun(self, message: Mapping[str, Any]) -> None:
        usage = mapping_of(message.get("usage"))
        self._model = text_of(message.get("model")) or None
        # What is in a cache counts apart here, and is read all the same.
        kinds = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        counted = [usage[kind] for kind in kinds if isinstance(usage.get(kind), int)]
        self._read = sum(counted) if counted else None
        self._cached = usage.get("cache_read_input_tokens")

    def _block(self, said: Mapping[str, Any]) -> Iterator[Event]:
        block = mapping_of(said.get("content_block"))
        if block.get("type") == "tool_use":
            call = _Asked(
                text_of(block.get("id")), text_of(block.get("name")), mapping_of(block.get("input"))
            )
            self._calls[_place(said)] = call
            yield {"type": "calling", "name": self.names.from_model(call.name)}
        elif text := text_of(block.get("text")):
            yield {"type": "text", "text": text}

    def _delta(self, said: Mapping[str, Any]) -> Iterator[Event]:
        delta = mapping_of(said.get("delta"))
        call = self._calls.get(_place(said))
        if call is not None:
            call.arguments += text_of(delta.get("partial_json"))
        elif text := text_of(delta.get("text")):
            yield {"type": "text", "text": text}
        elif thinking := text_of(delta.get("thinking")):
            yield {"type": "thinking", "text": thinking}


def _place(said: Mapping[str, Any]) -> int:
    place = said.get("index")
    if not isinstance(place, int):
        raise ValueError("no index")  # noqa: TRY004 - what is wrong is the text
    return place
