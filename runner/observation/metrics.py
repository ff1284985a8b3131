"""Metrics for Prometheus: calls, their outcomes, the time of their steps, and the load of the server.

Counters and histograms grow as calls end; gauges are read at a scrape. A label has a bounded number of
values: a tool that does not exist is `unknown`, and beyond `MOST_TOOLS` a tool is `other`; servers behind a
proxy may offer new ones without end.

Metrics name users and tools, so they are not a path beside `/mcp`: the operator's network decides who
reaches the address. A page in a browser cannot read it: it answers to addresses, `localhost` and
`allowed_hosts` only.

Source: prometheus.io, "Metric and label naming"; `docs/operating.md`, "Metrics".
"""

import ipaddress
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from functools import cache, partial
from typing import Any

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

_UNKNOWN = "unknown"
_Family = GaugeMetricFamily | CounterMetricFamily
# Seconds: from a kept worker's empty tool to the longest call that the default settings allow.
_CALL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600)
_STEP_BUCKETS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 600)


def _row(
    name: str, about: str, label: str = "", *, kind: type[_Family] = GaugeMetricFamily, unset: int | None = 0
) -> Any:
    """Declare a field that is a metric, with a value for each value of its label if it has one."""
    default = dict if label else lambda: unset
    return field(default_factory=default, metadata={"row": (name, about, label, kind)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """The load of a server at one moment.

    `component` is `node` for a worker node: a sum over a fleet leaves it out, since hosts count its calls.
    """

    running: int = _row("calls_running", "Calls that run.")
    waiting: int = _row("calls_waiting", "Calls that wait for a place.")
    workers: int = _row("workers_kept", "Workers kept for their users' next calls.")
    user_pools: int = _row("user_pools", "Pools of workers, a few for each recent user.")
    retired: Mapping[str, int] = _row(
        "workers_retired", "Workers that serve no other call, by reason.", "reason", kind=CounterMetricFamily
    )
    user_memory: Mapping[str, int] = _row("user_memory_bytes", "Memory of the user's processes.", "user")
    faults: Iterable[str] = ()
    audit_pending: int = _row("audit_pending", "Records that wait for the audit log's disk.")
    stored_bytes: int | None = _row("store_bytes", "Length of all that the store keeps.", unset=None)
    pending_files: int = _row("store_pending_files", "Files that wait for the store.")
    pending_bytes: int = _row("store_pending_bytes", "Length of these files.")
    failed_puts: int = _row(
        "store_failed_puts", "Puts that the store did not take.", kind=CounterMetricFamily
    )
    events_lost: int = _row(
        "events_lost", "Events not sent to other hosts of a fleet.", kind=CounterMetricFamily
    )
    component: str = ""


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._now = Gauges()
        self._tools: set[str] = set()
        ProcessCollector(registry=registry)
        counter = partial(Counter, namespace="toolcell", registry=registry)
        histogram = partial(Histogram, namespace="toolcell", registry=registry)
        about = "Calls that have ended, by tool and outcome: ok, error, or a code."
        calls = counter("calls", about, ("tool", "outcome"))
        about = "Time from a call to its answer."
        call_seconds = histogram("call_seconds", about, ("tool",), buckets=_CALL_BUCKETS)
        step_seconds = histogram(
            "step_seconds", "Time of each step of calls.", ("step",), buckets=_STEP_BUCKETS
        )
        self._denials = counter("denials", "What tools tried and were denied.", ("operation", "layer"))
        self._files = counter("files", "Files that calls took, returned and left to be kept.", ("way",))
        self._bytes = counter("file_bytes", "Length of these files.", ("way",))
        self._refused = counter("refused_logins", "Tokens and keys that were refused.")
        # The lookup of a child takes longer than the count.
        self._calls, self._call_seconds = cache(calls.labels), cache(call_seconds.labels)
        self._step_seconds = cache(step_seconds.labels)
        registry.register(self)

    def call_ended(self, record: CallRecord) -> None:
        """Count a call."""
        tool = self._label(record.tool) if record.is_known else _UNKNOWN
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
                self._bytes.labels(way).inc(sum(file.size for file in files))

    def _label(self, tool: str) -> str:
        label = utf8(tool)
        if len(self._tools) < MOST_TOOLS:
            self._tools.add(label)
        return label if label in self._tools else OTHER

    def logins_refused(self, count: int) -> None:
        """Count tokens and keys that were refused."""
        self._refused.inc(count)

    def exposition(self, now: Gauges) -> bytes:
        """Return all of them in the text format of Prometheus.

        Args:
            now: The load at this moment.
        """
        self._now = now
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges of `exposition`."""
        now, faults = self._now, dict.fromkeys(self._now.faults, 1)
        for part in fields(now):
            values = getattr(now, part.name)
            if "row" in part.metadata and values is not None:
                name, about, label, kind = part.metadata["row"]
                if now.component and name in ("calls_running", "calls_waiting"):
                    label, values = "component", {now.component: values}
                yield _family(name, about, values, label, kind=kind)
        yield _family("fault", "1 for each part that keeps calls from working.", faults, "part")
        yield _family("ready", "1 while calls would work.", int(not faults))


def _family(
    name: str,
    about: str,
    values: float | Mapping[str, float],
    label: str = "",
    *,
    kind: type[_Family] = GaugeMetricFamily,
) -> Metric:
    family = kind(f"toolcell_{name}", about, labels=(label,) if label else ())
    for key, value in (values if isinstance(values, Mapping) else {"": values}).items():
        family.add_metric((utf8(key),) if label else (), value)
    return family


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
        gauges: Returns the load now.
        hosts: Names, beside `localhost` and addresses, that a scraper may use for this server.

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
