"""Metrics for Prometheus: calls and their outcomes, where their time went, and what the server holds now.

Counters and histograms are counted as calls end; what there is at one moment is asked when it is scraped. A
label has a bounded number of values: a tool that does not exist is `unknown`, whatever it was called, and so
many tools have a name of their own; servers behind a proxy may offer new ones for ever.

Source: prometheus.io, "Metric and label naming"; `docs/operating.md`, "Metrics".
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.process_collector import ProcessCollector

from runner.observation.call_record import OTHER, CallRecord
from runner.observation.store_facts import StoreFacts

__all__ = ["CONTENT_TYPE", "MOST_TOOLS", "Gauges", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""What `exposition` gives."""

MOST_TOOLS = 1000
"""So many tools are told apart; the others are `other`."""

_UNKNOWN = "unknown"
# Seconds: from a kept worker's empty tool to the longest call that the default settings allow.
_CALL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600)
_STEP_BUCKETS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """Gauges at one moment.

    Attributes:
        running: Calls that run.
        waiting: Calls that wait for a place.
        workers: Workers that are kept for their users' next calls.
        user_pools: Pools of workers, one or a few for each user that was heard of lately.
        retired: Workers that had served a call and serve no other, by reason, since the server began.
        user_memory: Memory of the processes of each user, in bytes.
        faults: Parts that keep calls from working.
        audit_pending: Records that wait for the audit log's disk.
        store: What there is of the store, and what it did not take.
        events_lost: Events that could not be told to other hosts of a fleet, since the server began.
        component: `node` for a worker node, whose calls the hosts of its fleet count, too; else empty.
    """

    running: int = 0
    waiting: int = 0
    workers: int = 0
    user_pools: int = 0
    retired: Mapping[str, int] = field(default_factory=dict)
    user_memory: Mapping[str, int] = field(default_factory=dict)
    faults: Iterable[str] = ()
    audit_pending: int = 0
    store: StoreFacts = field(default_factory=StoreFacts)
    events_lost: int = 0
    component: str = ""


_Counted = Callable[[float], None]


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._now = Gauges()
        ProcessCollector(registry=registry)
        about = "Calls that have ended, by tool and outcome: ok, error, or a code."
        self._calls = Counter("toolcell_calls", about, ("tool", "outcome"), registry=registry)
        about = "Time from a call to its answer."
        name = "toolcell_call_seconds"
        self._call_seconds = Histogram(name, about, ("tool",), buckets=_CALL_BUCKETS, registry=registry)
        about = "Time of each step of calls."
        name = "toolcell_step_seconds"
        self._step_seconds = Histogram(name, about, ("step",), buckets=_STEP_BUCKETS, registry=registry)
        about = "What tools tried and were denied."
        self._denials = Counter("toolcell_denials", about, ("operation", "layer"), registry=registry)
        about = "Files that calls took, returned and left to be kept."
        self._files = Counter("toolcell_files", about, ("way",), registry=registry)
        self._bytes = Counter("toolcell_file_bytes", "Length of these files.", ("way",), registry=registry)
        about = "Tokens and keys that were refused."
        self._refused = Counter("toolcell_refused_logins", about, registry=registry)
        # Looking a child up takes longer than counting.
        self._known: dict[tuple[str, str], tuple[_Counted, _Counted]] = {}
        self._tools: set[str] = set()
        self._steps: dict[str, _Counted] = {}
        registry.register(self)

    def call_ended(self, record: CallRecord) -> None:
        """Count a call."""
        tool = self._label(record.tool) if record.is_known else _UNKNOWN
        key = (tool, record.outcome)
        if key not in self._known:
            self._known[key] = self._calls.labels(*key).inc, self._call_seconds.labels(tool).observe
        count, observe = self._known[key]
        count(1)
        observe(record.elapsed_s)
        before = 0.0
        for step, done in record.steps:
            if step not in self._steps:
                self._steps[step] = self._step_seconds.labels(step).observe
            self._steps[step](done - before)
            before = done
        for operation, layer in record.denials:
            self._denials.labels(operation, layer).inc()
        of_ways = {"in": record.inputs, "out": record.outputs, "generated": record.generated}
        for way, files in of_ways.items():
            if files:
                self._files.labels(way).inc(len(files))
                self._bytes.labels(way).inc(sum(file.size for file in files))

    def _label(self, tool: str) -> str:
        shown = _written(tool)
        if len(self._tools) < MOST_TOOLS:
            self._tools.add(shown)
        return shown if shown in self._tools else OTHER

    def logins_refused(self, count: int) -> None:
        """Count tokens and keys that were refused."""
        self._refused.inc(count)

    def exposition(self, now: Gauges) -> bytes:
        """Return all of them as Prometheus reads them.

        Args:
            now: What there is at this moment.
        """
        self._now = now
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Return nothing: what there is depends on when one asks."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Yield what there is at the moment of `exposition`."""
        now, store, gauge, counter = self._now, self._now.store, GaugeMetricFamily, CounterMetricFamily
        # Of a node with a label: who adds up a fleet leaves them out, since its hosts count the same calls.
        of, node = "component" if now.component else "", now.component
        yield _family(gauge, "calls_running", "Calls that run.", {node: now.running}, of)
        yield _family(gauge, "calls_waiting", "Calls that wait for a place.", {node: now.waiting}, of)
        yield _family(gauge, "workers_kept", "Workers kept for their users' next calls.", now.workers)
        about = "Pools of workers, a few for each user heard of lately."
        yield _family(gauge, "user_pools", about, now.user_pools)
        yield _family(
            gauge, "audit_pending", "Records that wait for the audit log's disk.", now.audit_pending
        )
        about = "Events that could not be told to other hosts of a fleet."
        yield _family(counter, "events_lost", about, now.events_lost)
        about = "Workers that serve no other call, by reason."
        yield _family(counter, "workers_retired", about, now.retired, "reason")
        about = "Memory of the processes of each user."
        yield _family(gauge, "user_memory_bytes", about, now.user_memory, "user")
        if store.kept_bytes is not None:
            yield _family(gauge, "store_bytes", "Length of all that the store keeps.", store.kept_bytes)
        yield _family(gauge, "store_pending_files", "Files that wait for the store.", store.pending_files)
        yield _family(gauge, "store_pending_bytes", "Length of these files.", store.pending_bytes)
        yield _family(counter, "store_failed_puts", "Puts that the store did not take.", store.failed_puts)
        faults = dict.fromkeys(now.faults, 1)
        yield _family(gauge, "fault", "1 for each part that keeps calls from working.", faults, "part")
        yield _family(gauge, "ready", "1 while calls would work.", int(not faults))


def _family(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    about: str,
    values: float | Mapping[str, float],
    label: str = "",
) -> Metric:
    """Return one metric: a value, or a value for each value of a label."""
    family = kind(f"toolcell_{name}", about, labels=(label,) if label else ())
    for key, value in (values if isinstance(values, Mapping) else {"": values}).items():
        family.add_metric((_written(key),) if label else (), value)
    return family


def _written(name: str) -> str:
    """Return a name as UTF-8 can have it: one that it cannot would leave no metrics at all."""
    return name.encode(errors="backslashreplace").decode()
