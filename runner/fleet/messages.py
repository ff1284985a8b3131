"""Messages between hosts and worker nodes, as JSON. Everything received is validated here.

A host sends a node a `SentCall`. The node answers with any number of `NodeMessage`, the last of which ends
the call. While a call runs, its host may send more messages.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from runner.worker.wire import RequestFacts

__all__ = [
    "NOTICE",
    "TO_NODE",
    "WIRE_VERSION",
    "Answer",
    "Cancel",
    "NodeMessage",
    "NodeStatus",
    "SentCall",
    "SessionEnd",
]

WIRE_VERSION = 8
"""Version of these messages. It is part of the release, and hosts use nodes of their release."""

NOTICE = "toolcell/notice"
"""Notification by which a node gives the client of a call a notice."""

_MOST_NAME_CHARS = 256

Id = Annotated[str, Field(pattern=r"^[0-9a-zA-Z._-]{1,128}$")]
Name = Annotated[str, Field(min_length=1, max_length=_MOST_NAME_CHARS)]
Object = dict[str, Any]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class SentCall(_Message):
    """One request, on its way from a host to a node.

    Attributes:
        call: Id of the call.
        host: Who waits for it.
        user: Name of the user.
        session: The session in which the user speaks.
        method: The MCP method.
        params: Its params.
        facts: What the tool may learn of the request.
        is_awaited: Whether its client waits for the answer.
    """

    kind: Literal["call"] = "call"
    call: Id
    host: Id
    user: Name
    session: str | None = Field(max_length=_MOST_NAME_CHARS)
    method: Name
    params: Object
    facts: RequestFacts
    is_awaited: bool


class Cancel(_Message):
    """Request of a host to end a call."""

    kind: Literal["cancel"] = "cancel"
    call: Id


class Answer(_Message):
    """Answer of a client to a request of a tool.

    Attributes:
        call: Id of the call.
        number: Number of the request, as the node gave it.
        reply: What the client answered.
    """

    kind: Literal["answer"] = "answer"
    call: Id
    number: str
    reply: Object


class SessionEnd(_Message):
    """End of a session at a host."""

    kind: Literal["session_end"] = "session_end"
    session: Name


TO_NODE: TypeAdapter[SentCall | Cancel | Answer | SessionEnd] = TypeAdapter(
    Annotated[SentCall | Cancel | Answer | SessionEnd, Field(discriminator="kind")],
    config=ConfigDict(hide_input_in_errors=True),
)
"""Reader of messages of a host to a node."""


class NodeMessage(_Message):
    """Message of a node about a call.

    Attributes:
        call: Id of the call.
        kind: `note`: a notification for its client; `ask`: a request to its client; `end`: how it ended;
            `refused`: the node does not execute it, and has not.
        body: What, as its kind has it.
    """

    call: Id
    kind: Literal["note", "ask", "end", "refused"]
    body: Object = Field(default_factory=dict)


class NodeStatus(_Message):
    """Status of a node, which it writes every second for all hosts.

    Attributes:
        beat: Number of the status.
        capacity: Number of concurrent calls that it accepts.
        calls: The calls that it has, each with whether its code has begun to run.
    """

    beat: int
    capacity: int = Field(ge=1)
    calls: dict[str, bool]
