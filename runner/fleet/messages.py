"""Messages between hosts and worker nodes, as JSON. Everything received is validated here.

A host sends a node a `SentCall`. The node answers with any number of `NodeMessage`, the last of which ends
the call. While a call runs, its host may send more messages.
"""

import hashlib
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from runner.worker.targets import tool_files
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
    "release_of",
]

WIRE_VERSION = 10
"""Version of these messages. It is part of the release."""

NOTICE = "toolcell/notice"
"""Method of the notification that carries a notice for the client of a call."""

_MOST_NAME_CHARS = 256

Id = Annotated[str, Field(pattern=r"^[0-9a-zA-Z._-]{1,128}$")]
Name = Annotated[str, Field(min_length=1, max_length=_MOST_NAME_CHARS)]
Object = dict[str, Any]


def release_of(targets: Sequence[str]) -> str:
    """Return the release of tool files: a digest of their contents and of our version.

    Hosts use only nodes of their own release, so that two versions can run side by side.

    Args:
        targets: The tool files. Modules that they import are not in the digest.
    """
    digest = hashlib.sha256(f"{version('toolcell')}\0{WIRE_VERSION}\0".encode())
    for target, path in zip(targets, tool_files(targets), strict=False):
        digest.update(f"{Path(target).name}\0".encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()[:16]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class SentCall(_Message):
    """One request, on its way from a host to a node.

    Attributes:
        call: Id of the call.
        host: Name of the host that sent it.
        user: Name of the user.
        session: Session of the user, if any.
        method: The MCP method.
        params: Its params.
        facts: Facts about the request that the tool may read.
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
    """Request from a host to cancel a call."""

    kind: Literal["cancel"] = "cancel"
    call: Id


class Answer(_Message):
    """Answer of a client to a tool's request.

    Attributes:
        call: Id of the call.
        number: Id of the request, assigned by the node.
        reply: The client's answer.
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
"""Validator of messages from a host to a node."""


class NodeMessage(_Message):
    """Message from a node about a call.

    Attributes:
        call: Id of the call.
        kind: `note`: a notification for its client; `ask`: a request to its client; `end`: its outcome;
            `refused`: the node has not executed it and will not.
        body: The notification, request or outcome.
    """

    call: Id
    kind: Literal["note", "ask", "end", "refused"]
    body: Object = Field(default_factory=dict)


class NodeStatus(_Message):
    """Status of a node, which it writes every second for all hosts.

    Attributes:
        beat: Number of the status.
        capacity: Number of concurrent calls that it accepts.
        calls: Whether the code of each of its calls has started, by call id.
    """

    beat: int
    capacity: int = Field(ge=1)
    calls: dict[str, bool]
