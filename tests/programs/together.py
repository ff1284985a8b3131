"""A program whose calls share a worker: one thread serves all, and some acts do not keep to the protocol."""

import contextlib
import os
import select
import socket
from collections.abc import Callable, Mapping
from typing import NoReturn

from sandbox.frames import FrameKind, encode
from sandbox.inside.program import Channel, JoinedCall

__all__ = ["PROGRAM", "Together"]

# Encoded at import: that takes longer than the host waits for a cancelled call.
LONG = encode(FrameKind.ANSWER_AND_READY, {"number": 0, "answer": [{"": ""}] * 990_000})


class Together:
    """Serves calls at once, each until its act is over or its connection ends."""

    def begin(self) -> None:
        """Nothing is shared by all that will be loaded."""

    def load(self, config: Mapping[str, object]) -> object:
        return dict(config)

    def warm_up(self) -> None:
        """Nothing needs warming up."""

    def prepare(self, *, warm: bool) -> None:
        """Nothing is prepared."""

    def finish(self) -> None:
        """Nothing was set up."""

    def wait(self, connection: socket.socket) -> None:
        """Nothing goes on between calls."""

    def serve(self, call: object, channel: Channel) -> object:
        return {"pid": os.getpid()}

    def serve_many(
        self, first: JoinedCall | None, connection: socket.socket, joined: Callable[[], JoinedCall | None]
    ) -> None:
        held: dict[int, JoinedCall] = {}
        self._take(first, held)
        while True:
            ready, _, _ = select.select([connection.fileno(), *held], [], [])
            for end in ready:
                if end == connection.fileno():
                    self._take(joined(), held)
                else:
                    self._end(held.pop(end))

    def _take(self, one: JoinedCall | None, held: dict[int, JoinedCall]) -> None:
        if one is None:
            return
        act = one.call["act"] if isinstance(one.call, dict) else None
        one.channel.send(FrameKind.NOTIFY, {"pid": os.getpid()})
        if act == "answer":
            one.finish({"pid": os.getpid()})
        else:
            held[one.channel.connection.fileno()] = one

    def _end(self, one: JoinedCall) -> None:
        """End a call that is cancelled, in the way of its act."""
        act = one.call["act"] if isinstance(one.call, dict) else None
        with contextlib.suppress(OSError):
            if act == "floods":
                self._flood(one)
            if act == "long":
                one.channel.connection.sendall(LONG)
            one.finish({})

    def _flood(self, one: JoinedCall) -> NoReturn:
        chunk = encode(FrameKind.NOTIFY, {}) * 10_000
        while True:
            one.channel.connection.sendall(chunk)


PROGRAM = Together()
