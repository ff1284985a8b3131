"""Metrics for Prometheus: calls, their outcomes, the time of their steps, and the load of the server.

Counters and histograms grow as calls end; gauges are read at a scrape. A label has a bounded number of
values, since servers behind a proxy may offer new tools without end. A tool that does not exist is `unknown`,
and beyond `MOST_TOOLS` a tool is `other`.

Metrics name users and tools, so they are not a path beside `/mcp`: the operator's network controls access to
their own address. A page in a browser cannot read them by DNS rebinding: requests must name an IP address,
`localhost` or one of `allowed_hosts`.

Source: prometheus.io, "Metric and label naming"; `docs/operating.md`, "Metrics".
"""

import ipaddress
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache, partial

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.process_collector import ProcessCollector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from runner.observation.call_record import OTHER, CallRecord, utf8
from runner.system.listening import listen_on, serving_beside

__all__ = ["MOST_TOOLS", "Gauges", "Metrics", "metrics_served"]

MOST_TOOLS = 1000
"""Number of tools with a label of their own; the others are `other`."""

# Seconds: from an empty tool in a kept worker to the longest call that the default settings allow.
_CALL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600)
_STEP_BUCKETS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """The load of a server at one moment.

    `component` is `node` for a worker node: exclude it from sums over a fleet, since hosts count its calls.
    """

    running: int = 0
    waiting: int = 0
    workers: int = 0
    user_pools: int = 0
    retired: Mapping[str, int] = field(default_factory=dict)
    user_memory: Mapping[str, int] = field(default_factory=dict)
    faults: Iterable[str] = ()
    audit_pending: int = 0
    stored_bytes: int | None = None
    pending_files: int = 0
    pending_bytes: int = 0
    failed_puts: int = 0
    events_lost: int = 0
    component: str = ""

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        part = "component" if self.component else ""
        running, waiting = {self.component: self.running}, {self.component: self.waiting}
        yield _gauge("calls_running", "Calls that run.", running, part)
        yield _gauge("calls_waiting", "Calls that wait for a place.", waiting, part)
        yield _gauge("workers_kept", "Workers kept for their users' next calls.", self.workers)
        yield _gauge("user_pools", "Pools of workers, a few for each recent user.", self.user_pools)
        about = "Workers that serve no other call, by reason."
        yield _counter("workers_retired", about, self.retired, "reason")
        yield _gauge("user_memory_bytes", "Memory of the user's processes.", self.user_memory, "user")
        yield _gauge("audit_pending", "Records that wait for the audit log's disk.", self.audit_pending)
        if self.stored_bytes is not None:
            yield _gauge("store_bytes", "Length of all that the store keeps.", self.stored_bytes)
        yield _gauge("store_pending_files", "Files that wait for the store.", self.pending_files)
        yield _gauge("store_pending_bytes", "Length of these files.", self.pending_bytes)
        yield _counter("store_failed_puts", "Puts that the store did not take.", self.failed_puts)
        yield _counter("events_lost", "Events not sent to other hosts of a fleet.", self.events_lost)
        faults = dict.fromkeys(self.faults, 1)
        yield _gauge("fault", "1 for each part that keeps calls from working.", faults, "part")
        yield _gauge("ready", "1 while calls would work.", int(not faults))


def _family(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    about: str,
    values: float | Mapping[str, float],
    label: str = "",
) -> Metric:
    family = kind(f"toolcell_{name}", about, labels=(label,) if label else ())
    for key, value in (values if isinstance(values, Mapping) else {"": values}).items():
        family.add_metric((utf8(key),) if label else (), value)
    return family


_gauge, _counter = partial(_family, GaugeMetricFamily), partial(_family, CounterMetricFamily)


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._tools: set[str] = set()
        ProcessCollector(registry=registry)
        counter = partial(Counter, namespace="toolcell", registry=registry)
        histogram = partial(Histogram, namespace="toolcell", registry=registry)
        about = "Calls that have ended, by tool and outcome: ok, error, or a code."
        calls = counter("calls", about, ("tool", "outcome"))
        about = "Time from a call to its answer."
        call_seconds = histogram("call_seconds", about, ("tool",), buckets=_CALL_BUCKETS)
        about = "Time of each step of calls."
        step_seconds = histogram("step_seconds", about, ("step",), buckets=_STEP_BUCKETS)
        self._denials = counter("denials", "What tools tried and were denied.", ("operation", "layer"))
        self._files = counter("files", "Files that calls took, returned and left to be kept.", ("way",))
        self._bytes = counter("file_bytes", "Length of these files.", ("way",))
        self._refused = counter("refused_logins", "Tokens and keys that were refused.")
        # Cached, since looking up a child takes longer than counting.
        self._calls, self._call_seconds = cache(calls.labels), cache(call_seconds.labels)
        self._step_seconds = cache(step_seconds.labels)

    def call_ended(self, record: CallRecord) -> None:
        """Count a call."""
        tool = self._label(record.tool) if record.is_known else "unknown"
        self._calls(tool, record.outcome).inc()
        self._call_seconds(tool).observe(record.elapsed_s)
        before = 0.0
        for step, done in record.steps:
            self._step_seconds(step).observe(done - before)
            before = done
        for operation, layer in record.denials:
            self._denials.labels(operation, layer).inc()
        ways = {"in": record.inputs, "out": record.outputs, "generated": record.generated}
        for way, files in ways.items():
            if files:
                self._files.labels(way).inc(len(files))
                self._bytes.labels(way).inc(sum(file["bytes"] for file in files))

    def _label(self, tool: str) -> str:
        label = utf8(tool)
        if len(self._tools) < MOST_TOOLS:
            self._tools.add(label)
        return label if label in self._tools else OTHER

    def logins_refused(self, count: int) -> None:
        """Count tokens and keys that were refused."""
        self._refused.inc(count)

    def exposition(self, now: Gauges) -> bytes:
        """Return all metrics, and the given load, in the text format of Prometheus."""
        return generate_latest(self._registry) + generate_latest(now)


@asynccontextmanager
async def metrics_served(
    address: str | None,
    metrics: Metrics | None,
    gauges: Callable[[], Awaitable[Gauges]],
    *,
    hosts: Collection[str] = (),
) -> AsyncIterator[None]:
    """Serve metrics at an address until the block ends; without one, do nothing.

    Args:
        address: HOST:PORT; port 0 takes a free one, which standard error names.
        metrics: The metrics.
        gauges: Returns the current load.
        hosts: Host names, besides `localhost` and IP addresses, that a scraper may use for this server.

    Raises:
        UsageError: The address cannot be listened on.
    """
    if address is None or metrics is None:
        yield
        return
    host, _, port = address.rpartition(":")
    listener = listen_on(host, int(port), setting="metrics_address")

    async def answer(request: Request) -> Response:
        name = (request.url.hostname or "").strip("[]")
        if name != "localhost" and name not in hosts:
            try:
                ipaddress.ip_address(name)
            except ValueError:
                text = "this server does not know itself by that name; an operator adds it to allowed_hosts\n"
                return PlainTextResponse(text, status_code=421)
        return Response(
            metrics.exposition(await gauges()), headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4}
        )

    web = Starlette(routes=[Route("/metrics", answer, methods=["GET"])])
    async with serving_beside(web, [listener]):
        print(f"metrics at http://{host}:{listener.getsockname()[1]}/metrics", file=sys.stderr, flush=True)  # noqa: T201
        yield
