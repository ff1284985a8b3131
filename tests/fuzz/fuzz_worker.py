"""A worker that says anything, at the host's real lease; and what its words may be made of."""

import asyncio
import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from result_fakes import contract_like, json_values

from runner.author import PUT
from runner.steps.listener import CallListener, ClientRefusal
from runner.toolset.session_state import SessionState
from sandbox.deadlines import Deadlines, Rung
from sandbox.frames import FrameKind
from sandbox.host.closer import Closer
from sandbox.host.connection import Connection
from sandbox.host.lease import Lease, Listener
from sandbox.loop_share import LoopShare
from sandbox.outcome import Denial, Outcome
from sandbox.policy import MIB, Limits

LIMITS = Limits(frame_bytes=1 * MIB, output_bytes=4096)
DEADLINES = Deadlines(idle_s=30, total_s=60)


class SilentZygote:
    """Stands for the zygote of a worker that left nothing behind."""

    pid = 0
    oom_kills = 0
    loss = None

    def __init__(self) -> None:
        self.loop_share = LoopShare()

    def has_strays(self, pid: int) -> bool:
        return False

    def reap(self, reaping: Awaitable[None]) -> "asyncio.Task[None]":
        return asyncio.ensure_future(reaping)

    async def reaped(self, pid: int, seconds: float) -> str:
        return "signal SIGKILL"

    def refused(self, worker: object) -> tuple[Denial, ...]:
        return ()

    def close(self) -> None:
        """Nothing to let go of."""


@dataclass
class SpeakingWorker:
    """Stands for a worker: everything that it will ever say is in its socket already."""

    connection: Connection
    output: int
    pidfd: int
    pid: int = 0
    calls: int = 0
    goes_on: bool = False
    cpu_before_s: float = 0.0

    def kill(self) -> None:
        """It has ended already."""

    def kill_group(self) -> bool:
        return False

    def close(self) -> None:
        self.connection.close()
        os.close(self.output)
        os.close(self.pidfd)


@dataclass
class StrictClient:
    """A client on a wire: what cannot be written as JSON in UTF-8 cannot be sent to it."""

    sent: int = 0

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        as_on_the_wire(params)
        self.sent += 1

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        as_on_the_wire(params)
        raise ClientRefusal(-32601, f"no {method} here")


@dataclass
class Overheard:
    """A listener that keeps what the one behind it raised: it must not, whatever a worker says."""

    inner: Listener
    raised: list[Exception] = field(default_factory=list)

    async def notify(self, value: Mapping[str, object]) -> None:
        try:
            await self.inner.notify(value)
        except Exception as error:  # noqa: BLE001 - any at all is a finding
            self.raised.append(error)

    async def request(self, value: Mapping[str, object]) -> Mapping[str, object]:
        try:
            answer = await self.inner.request(value)
            as_on_the_wire(answer)
        except Exception as error:
            self.raised.append(error)
            raise
        return answer

    def waits_for_client(self, value: Mapping[str, object]) -> bool:
        return self.inner.waits_for_client(value)

    async def rung(self, rung: Rung) -> None:
        await self.inner.rung(rung)


def in_words(error: Exception) -> None:
    """Hold an error to what any error is for."""
    assert str(error)


def as_on_the_wire(value: object) -> bytes:
    return json.dumps(value, allow_nan=False, ensure_ascii=False).encode()


def _published(event: Mapping[str, Any]) -> None:
    as_on_the_wire(event)


def listening(keep: Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]) -> CallListener:
    return CallListener(
        client=StrictClient(),
        params={"_meta": {"progressToken": 1}},
        levels=frozenset({"debug", "info", "warning", "error"}),
        deadlines=DEADLINES,
        user="alice",
        state=SessionState(),
        publish=_published,
        keep=keep,
    )


async def hear(frames: bytes, printed: bytes, listener: Listener) -> Outcome:
    """Run one call of a worker that says `said`, prints `printed` and ends."""
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MIB)
    output, end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    os.write(end, printed)
    os.close(end)
    with theirs:
        theirs.sendall(frames)
        theirs.shutdown(socket.SHUT_WR)
        zygote = SilentZygote()
        connection = Connection(ours, Closer(), zygote.loop_share)
        worker = SpeakingWorker(connection, output, os.eventfd(0))
        lease = Lease(zygote=zygote, worker=worker, limits=LIMITS)  # type: ignore[arg-type]
        outcome = await lease.run({"method": "tools/call"}, deadlines=DEADLINES, listener=listener)
        await lease.at_rest()
    return outcome


_METHODS = (
    "notifications/progress",
    "notifications/message",
    "notifications/tools/list_changed",
    "elicitation/create",
    "state/get",
    "state/put",
    "state/delete",
    PUT,
)
_KEYS = (
    *(
        "method",
        "params",
        "id",
        "progress",
        "total",
        "message",
        "level",
        "data",
        "msg",
        "logger",
        "key",
        "value",
    ),
    *("ttl", "collection", "path", "name", "mime", "source", "operation", "layer", "requestedSchema"),
    *("result", "raised", "error", "kind", "type", "frames", "file", "line", "function", "text", "errno"),
    *(
        "faults",
        "argument",
        "problem",
        "denied",
        "filename",
        "code",
        "content",
        "structuredContent",
        "isError",
    ),
    *("_meta", "resultType", "inputRequests", "requestState", "results", "meta_data", "artifacts"),
)
_words = st.sampled_from(
    (
        *_METHODS,
        *("info", "guard", "kernel", "socket.connect", "open", "/etc/passwd", "x.txt", "raised", "arguments"),
        *("not found", "tool error", "MemoryError", "FileNotFoundError", "10.0.0.1:80", ":", "[::1]:99999"),
        *(
            'MCP_UPDATE:{"type":"artifacts","artifacts":[{"name":"a","b64":"aGk="}]}',
            "MCP_UPDATE:{",
            "\ud800",
        ),
        *("input_required", "text", "", "\0", "٣", "²", "a" * 5000),
    )
)
_numbers = (
    st.sampled_from((0, -1, 1, 27, 4096, 2**63, 10**40, 1e308, -1e-320, 0.1))
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
)
spoken = st.recursive(
    st.none() | st.booleans() | _numbers | _words | st.text(st.characters(), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(_KEYS) | st.text(max_size=4), inner, max_size=7)
    ),
    max_leaves=16,
)
_objects = st.dictionaries(st.sampled_from(_KEYS), spoken, max_size=8)


def _object(**parts: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects of a known shape, in which any part may be missing."""
    return st.fixed_dictionaries({}, optional=parts)


_progress = _object(progress=_numbers | spoken, total=_numbers | spoken, message=_words | spoken)
_logged = _object(level=_words, data=_object(msg=_words | spoken, extra=spoken) | spoken, logger=spoken)
_stated = _object(key=_words | spoken, value=spoken, ttl=_numbers | spoken, collection=_words | spoken)
_put = _object(name=_words | spoken, mime=spoken, path=_words | spoken, source=spoken)
_params = _progress | _logged | _stated | _put | spoken
_raised = _object(
    kind=_words,
    type=_words | spoken,
    message=_words | spoken,
    filename=_words | spoken,
    errno=_numbers,
    faults=st.lists(_object(argument=_words | spoken, problem=_words | spoken) | spoken, max_size=3) | spoken,
    frames=st.lists(_object(file=_words, line=_numbers, function=spoken, text=_words) | spoken, max_size=3)
    | spoken,
    denied=_object(operation=_words | spoken, path=_words | spoken) | spoken,
)
_wire = _object(
    content=st.lists(contract_like, max_size=3) | spoken,
    structuredContent=contract_like | json_values | spoken,
    isError=st.booleans() | spoken,
    _meta=spoken,
    resultType=_words,
    inputRequests=spoken,
)
_BODIES = {
    FrameKind.ANSWER: _object(result=_wire | spoken, raised=_raised | spoken, error=_objects | spoken),
    FrameKind.ANSWER_AND_READY: _object(
        result=_wire | spoken, raised=_raised | spoken, error=_objects | spoken
    ),
    FrameKind.NOTIFY: _object(method=_words, params=_params),
    FrameKind.REQUEST: _object(id=_numbers | spoken, method=_words, params=_params),
    FrameKind.DENIED: _object(operation=_words | spoken, path=_words | spoken, layer=_words | spoken),
}


@st.composite
def _framed(draw: st.DrawFn, kinds: Sequence[bytes]) -> bytes:
    """One frame, mostly of an honest shape; its length may lie."""
    letter = draw(st.sampled_from(kinds))
    honest = next((strategy for kind, strategy in _BODIES.items() if kind.value == letter), spoken)
    value = draw(st.one_of(honest, honest, honest, _objects, spoken))
    body = json.dumps(value).encode() if draw(st.integers(0, 19)) else draw(st.binary(max_size=60))
    length = len(body) if draw(st.integers(0, 29)) else draw(st.integers(0, 2**32 - 1))
    return struct.pack(">Ic", length, letter) + body


_LETTERS = [kind.value for kind in _BODIES] * 3 + [kind.value for kind in FrameKind] + [b"?", b"\0"]
_frames = st.lists(_framed(_LETTERS), max_size=8).map(b"".join)
_answered = st.tuples(_frames, _framed([FrameKind.ANSWER.value, FrameKind.ANSWER_AND_READY.value])).map(
    b"".join
)
streams = st.one_of(_answered, _answered, _frames, st.binary(max_size=400))
"""Everything that a worker can put into its socket before it ends."""
