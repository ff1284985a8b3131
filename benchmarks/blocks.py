"""A block: calls of one tool on one server, each timed from its first byte sent to its last received."""

import itertools
import json
import select
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.wire import Connection

__all__ = ["Block", "Load", "Reachable", "run_block"]

_ANSWER_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load that a block puts on a server.

    Attributes:
        name: Label in the report.
        in_flight: Requests under way at once.
        think_s: Pause after each answer, in seconds.
    """

    name: str
    in_flight: int = 1
    think_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The measurements of one block.

    Attributes:
        latencies_s: One for each call, in seconds.
        elapsed_s: The whole block, in seconds.
    """

    latencies_s: list[float]
    elapsed_s: float


class Reachable(Protocol):
    """A target of requests, such as a `Server`."""

    def connect(self, in_flight: int) -> Sequence[Connection]:
        """Return the connections over which `in_flight` requests can be under way at once."""
        ...


@dataclass(slots=True)
class _Run:
    tool: str
    arguments: Mapping[str, str]
    left: int
    think_s: float
    sent: dict[int, float] = field(default_factory=dict)
    under_way: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def send(self, connection: Connection) -> None:
        if self.left == 0:
            return
        self.left -= 1
        number = next(self.numbers)
        data = connection.frame(connection.call(number, self.tool, self.arguments), self.tool)
        self.under_way[connection.fileno()] += 1
        self.sent[number] = time.perf_counter()
        connection.send(data)

    def receive(self, connection: Connection) -> None:
        """Take in what has come, and ask again for each answer."""
        messages = connection.receive()
        now = time.perf_counter()
        for message in messages:
            answer = json.loads(message)
            if "result" not in answer or answer["result"].get("isError"):
                raise RuntimeError(f"a call of {self.tool} failed: {message.decode(errors='replace')[:2000]}")
            self.latencies.append(now - self.sent.pop(answer["id"]))
            self.under_way[connection.fileno()] -= 1
        for _ in messages:
            if self.think_s:
                time.sleep(self.think_s)
            self.send(connection)


def run_block(
    server: Reachable,
    tool: str,
    arguments: Mapping[str, str],
    *,
    calls: int,
    load: Load,
    over: Sequence[Connection] = (),
) -> Block:
    """Make `calls` calls under `load` and time each.

    Args:
        server: Who is asked.
        tool: The tool that is called.
        arguments: Its arguments.
        calls: How many calls.
        load: How hard it is asked.
        over: Connections that are used, and stay open; without any, new ones are made.

    Raises:
        RuntimeError: A call failed, or no answer came.
        ConnectionError: The server closed a connection before its answer.
    """
    connections = over or server.connect(load.in_flight)
    by_fd = {connection.fileno(): connection for connection in connections}
    run = _Run(tool, arguments, calls, load.think_s)
    started = time.perf_counter()
    try:
        for index in range(load.in_flight):
            run.send(connections[index % len(connections)])
        # Whom nothing is asked any more is not listened to: a server may close such a connection.
        poll = select.poll()
        for fd in run.under_way:
            poll.register(fd, select.POLLIN)
        while run.sent:
            ready = poll.poll(_ANSWER_S * 1000)
            if not ready:
                raise RuntimeError(f"no answer to {tool} within {_ANSWER_S:g} seconds")
            for fd, _event in ready:
                run.receive(by_fd[fd])
                if not run.under_way[fd]:
                    poll.unregister(fd)
    finally:
        for connection in connections if not over else ():
            connection.close()
    return Block(latencies_s=run.latencies, elapsed_s=time.perf_counter() - started)
