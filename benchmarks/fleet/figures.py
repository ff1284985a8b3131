"""What a call, a user and a process cost: each input of the model with its unit, range and source.

`measured` was measured on the machine that the document names, `assumed` was not, `set` is in our own code.
`scaled` was measured while other programs kept that machine busy, which made all processor times three to
four times as long; it is in the proportion that it had to a call without a fleet, measured in turns with it,
whose time on a quiet machine is known.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

__all__ = ["FIGURES", "Costs", "Figure", "costs"]

Kind = Literal["measured", "scaled", "assumed", "set"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One input.

    Attributes:
        value: What the model takes.
        unit: Its unit, as the document shows it.
        low: The least that is plausible.
        high: The most.
        kind: Whether it was measured.
        source: Where it is from.
        what: What it is.
    """

    value: float
    unit: str
    low: float
    high: float
    kind: Kind
    source: str
    what: str


_HERE = "`scripts/scale --measure`"
_TIME = "[Where the time of a call goes](performance.md#where-the-time-of-a-call-goes)"

FIGURES: Mapping[str, Figure] = {
    "host_s": Figure(1.4, "ms", 1.0, 6.5, "scaled", f"{_HERE}, {_TIME}", "a call in its host: processor"),
    "heard_s": Figure(22, "us", 20, 60, "measured", _HERE, "a host hears that a place is free: processor"),
    "node_s": Figure(
        1.3, "ms", 1.1, 6.3, "scaled", f"{_HERE}, {_TIME}", "a call in the node's own process: processor"
    ),
    "worker_s": Figure(
        0.44, "ms", 0.4, 1.8, "measured", _TIME, "a call in its worker, without the tool's own"
    ),
    "first_s": Figure(98, "ms", 30, 250, "measured", _HERE, "the call with which a user comes: processor"),
    "redis_s": Figure(0.3, "ms", 0.2, 1.5, "scaled", f"{_HERE}, {_TIME}", "a call in Redis: processor"),
    "redis_commands": Figure(
        65, "", 65, 84, "measured", _HERE, "commands of Redis a call, those in scripts too"
    ),
    "place_s": Figure(
        40, "us", 20, 100, "assumed", "twelve commands in a script", "to ask for a place: Redis"
    ),
    "publish_s": Figure(1, "us", 1, 5, "measured", _HERE, "to tell one host that a place is free: Redis"),
    "watch_s": Figure(1, "us", 1, 3, "measured", _HERE, "one of many commands sent together: Redis"),
    "trip_s": Figure(
        0.5, "ms", 0.1, 2, "assumed", "one network of a data centre", "to Redis and back: network"
    ),
    "user_bytes": Figure(
        22.9,
        "MiB",
        15.1,
        31.0,
        "measured",
        "[Users](performance.md#users)",
        "a user who is there: memory of a node",
    ),
    "host_bytes": Figure(
        81.5, "MiB", 80, 105, "measured", "[HTTP](performance.md#servers-over-http)", "a host: memory"
    ),
    "connections": Figure(
        3,
        "",
        2,
        4,
        "assumed",
        "15 in all with one of each",
        "connections to Redis for each host and node, together",
    ),
    "put_requests": Figure(5, "", 5, 10, "measured", _HERE, "S3 requests to keep a file of up to 8 MiB"),
    "get_requests": Figure(1, "", 1, 1, "measured", _HERE, "S3 requests to stage a file"),
    "file_s": Figure(5, "ms", 4, 12, "measured", _HERE, "a file to or from S3: processor of the node"),
    "mib_s": Figure(2, "ms", 1, 3, "measured", _HERE, "each MiB of it: processor of the node"),
    "net_mib_s": Figure(
        1, "ms", 0.4, 10, "assumed", "10 Gbit/s, of 25 to 1", "each MiB: network of the node"
    ),
    "s3_s": Figure(30, "ms", 10, 100, "assumed", "services for hire", "one request to S3: time"),
    "s3_mib_s": Figure(10, "ms", 2, 20, "assumed", "100 MiB/s a connection", "each MiB: time"),
    "dead_s": Figure(8, "s", 8, 8, "set", "`runner worker`", "silence after which a node is taken for dead"),
    "look_s": Figure(
        0.5, "s", 0.5, 0.5, "set", "`runner serve`", "after which a host asks again whose turn it is"
    ),
    "watch_every_s": Figure(
        0.5, "s", 0.5, 0.5, "set", "`runner serve`", "after which a host looks at nodes again"
    ),
    "patience_s": Figure(
        30, "s", 30, 30, "set", "`runner serve`", "after which a waiting call gets `E_BUSY`"
    ),
    "full": Figure(0.6, "", 0.5, 0.8, "assumed", "the operator's choice", "how busy anything may be"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The values of `FIGURES` by which the model and the simulation calculate; seconds, bytes, numbers."""

    host_s: float
    heard_s: float
    node_s: float
    worker_s: float
    first_s: float
    redis_s: float
    redis_commands: float
    place_s: float
    publish_s: float
    watch_s: float
    trip_s: float
    user_bytes: float
    host_bytes: float
    connections: float
    put_requests: float
    get_requests: float
    file_s: float
    mib_s: float
    net_mib_s: float
    s3_s: float
    s3_mib_s: float
    dead_s: float
    look_s: float
    watch_every_s: float
    patience_s: float
    full: float


_IN_UNITS = {"ms": 1e-3, "us": 1e-6, "s": 1.0, "MiB": float(1 << 20)}


def costs(**changed: float) -> Costs:
    """Return what things cost; `changed` says what differs, in seconds, bytes or numbers."""
    known = {name: figure.value * _IN_UNITS.get(figure.unit, 1.0) for name, figure in FIGURES.items()}
    return Costs(**{each.name: {**known, **changed}[each.name] for each in fields(Costs)})
