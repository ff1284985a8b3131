"""Messages between hosts and worker nodes, as JSON. Everything received is validated here.

A host sends a node a `HostMessage` with a `SentCall`. The node answers with any number of `NodeMessage`, the
last of which ends the call. While a call runs, its host may send more of its messages.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runner.fleet.seal import FleetKey, Forged

__all__ = [
    "NOTICE",
    "WIRE_VERSION",
    "HostMessage",
    "NodeMessage",
    "NodeStatus",
    "SentCall",
    "read",
]

WIRE_VERSION = 7
"""Version of these messages. A node refuses calls of another version."""

NOTICE = "toolcell/notice"
"""Notification by which a node gives the client of a call a notice."""

_MOST_NAME_CHARS = 256

Id = Annotated[str, Field(pattern=r"^[0-9a-zA-Z._-]{1,128}$")]
Name = Annotated[str, Field(min_length=1, max_length=_MOST_NAME_CHARS)]
Object = dict[str, Any]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SentCall(_Message):
    """One request, on its way from a host to a node.

    Attributes:
        version: `WIRE_VERSION` of the host.
        release: What the host serves; a node that serves something else refuses.
        call: Id of the call.
        host: Who waits for it.
        is_tool: Whether it is a `tools/call`; else its answer is the file's own.
        user: Name of the user.
        session: The session in which the user speaks.
        method: The MCP method.
        params: Its params.
        facts: What the tool may learn of the request: `RequestFacts`.
        levels: Levels of log messages that the client wants.
        is_awaited: Whether its client waits for the answer.
    """

    version: int
    release: str
    call: Id
    host: Id
    is_tool: bool
    user: Name
    session: str | None = Field(max_length=_MOST_NAME_CHARS)
    method: Name
    params: Object
    facts: Object
    levels: list[str]
    is_awaited: bool


class NodeMessage(_Message):
    """Message of a node about a call.

    Attributes:
        call: Which call.
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


class HostMessage(_Message):
    """Message of a host to a node about a call or a session.

    Attributes:
        kind: a `call`, whose body is a `SentCall`; `cancel` it; an `answer` of its client; `ended`: a session
            is over.
        call: Which call; empty for a session.
        body: What, as its kind has it.
    """

    kind: Literal["call", "cancel", "answer", "ended"]
    call: str = Field(max_length=128)
    body: Object = Field(default_factory=dict)


def read(message: type[Any], sealed: bytes, key: FleetKey, *, to: str) -> Any:
    """Return a message that was sealed.

    Args:
        message: `NodeMessage`, `NodeStatus` or `HostMessage`.
        sealed: The message, sealed.
        key: The key of the fleet.
        to: Who reads it.

    Raises:
        Forged: It is not of the fleet, not for this reader, or no such message.
    """
    try:
        return message.model_validate(key.opened(sealed, to=to))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise Forged(f"{message.__name__}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
