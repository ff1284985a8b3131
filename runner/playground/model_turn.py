"""One turn of a chat as a page asks for it, in one form for all endpoints; and what is told of its answer.

A page says what the model is to read: words, its own answers and calls, results of tools. It says nothing of
where that goes.

Source: decision 47.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runner.http.responses import Refusal

__all__ = [
    "AssistantMessage",
    "Call",
    "Event",
    "Image",
    "Message",
    "OfferedTool",
    "ToolMessage",
    "ToolResult",
    "Turn",
    "UserMessage",
    "turn_of",
]

Event = dict[str, Any]
"""What a page is told: `names`, `text`, `thinking`, `calling`, `call`, `usage`, `end`, `error`"""

_MOST_MESSAGES = 2000
_MOST_TOOLS = 512
_MOST_NAME = 256


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class UserMessage(_Part):
    """What the person said."""

    role: Literal["user"]
    text: str = Field(min_length=1)


class Call(_Part):
    """A call that the model asked for."""

    id: str = Field(min_length=1, max_length=_MOST_NAME)
    name: str = Field(min_length=1, max_length=_MOST_NAME)
    arguments: Mapping[str, Any]


class AssistantMessage(_Part):
    """What the model answered."""

    role: Literal["assistant"]
    text: str = ""
    calls: tuple[Call, ...] = ()


class Image(_Part):
    """A picture in a result, as base64."""

    mime: Literal["image/png", "image/jpeg", "image/gif", "image/webp"]
    data: str = Field(pattern=r"^[A-Za-z0-9+/]+={0,2}$")


class ToolResult(_Part):
    """What the model sees of a result."""

    id: str = Field(min_length=1, max_length=_MOST_NAME)
    text: str
    is_error: bool = False
    images: tuple[Image, ...] = ()


class ToolMessage(_Part):
    """The results of all calls of the answer before."""

    role: Literal["tool"]
    results: tuple[ToolResult, ...] = Field(min_length=1)


class OfferedTool(_Part):
    """A tool that the model may ask for."""

    name: str = Field(min_length=1, max_length=_MOST_NAME)
    description: str = ""
    parameters: Mapping[str, Any]


Message = Annotated[UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class Turn(_Part):
    """What one answer of a model is asked for with."""

    model: str
    system: str = ""
    messages: tuple[Message, ...] = Field(min_length=1, max_length=_MOST_MESSAGES)
    tools: tuple[OfferedTool, ...] = Field((), max_length=_MOST_TOOLS)
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)


def turn_of(said: Mapping[str, Any], *, models: tuple[str, ...], images: bool) -> Turn:
    """Read a turn.

    Args:
        said: What a page sent.
        models: Names of the models that may be asked.
        images: Whether pictures may be given to them.

    Raises:
        Refusal: 400; it is none, or asks for what the operator has not allowed.
    """
    try:
        turn = Turn.model_validate(said)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise Refusal(400, f"this is no turn of a chat: {where}: {first['msg']}") from None
    if turn.model not in models:
        raise Refusal(400, f"there is no model {turn.model[:80]!r} here; choose one of {', '.join(models)}")
    if len({tool.name for tool in turn.tools}) < len(turn.tools):
        raise Refusal(400, "two tools have the same name; offer each once")
    seen = (
        result for message in turn.messages if isinstance(message, ToolMessage) for result in message.results
    )
    if not images and any(result.images for result in seen):
        raise Refusal(400, "pictures are not given to models here (playground_model_images)")
    return turn
