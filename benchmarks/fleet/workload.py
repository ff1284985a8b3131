"""What is asked of a fleet and what it is made of: the two values that the model and the simulation take."""

from dataclasses import dataclass

__all__ = ["GIB", "MIB", "Fleet", "Workload"]

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What users ask for. None of it was measured: it is the operator's own.

    Attributes:
        users: Users who are there at once, each with one call at a time.
        think_s: Mean pause of a user between an answer and the next call.
        calls_per_session: Calls of a user before another one comes in that place.
        tool_cpu_s: Mean processor time that a tool itself takes.
        tool_wait_s: Mean time for which a tool waits for something else, such as a database.
        files_in: Share of calls that stage a file from S3.
        files_out: Share of calls that keep a file in S3.
        file_bytes: Length of such a file.
        tool_bytes: Memory that a running tool takes beside what a parked worker has.
        idempotent: Share of calls whose tool may be run twice.
        session_idle_s: After what silence a user's session ends: the setting of that name.
    """

    users: int
    think_s: float = 30.0
    calls_per_session: float = 20.0
    tool_cpu_s: float = 0.02
    tool_wait_s: float = 0.1
    files_in: float = 0.1
    files_out: float = 0.1
    file_bytes: int = MIB
    tool_bytes: int = 64 * MIB
    idempotent: float = 0.5
    session_idle_s: float = 1800.0

    @property
    def cold(self) -> float:
        """Return the share of calls with which a user comes."""
        return 1.0 / self.calls_per_session


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What serves them. Several may stand side by side, each with its own Redis and part of the users.

    Attributes:
        fleets: How many there are.
        hosts: Host processes of each.
        nodes: Worker nodes of each.
        cores: Processors of a node.
        node_bytes: Memory of a node.
        places: Calls that a node runs at once: its `max_calls`.
    """

    fleets: int = 1
    hosts: int = 1
    nodes: int = 1
    cores: int = 8
    node_bytes: int = 64 * GIB
    places: int = 64
