"""Spans of calls for OpenTelemetry: one for each call, with its steps below it.

They continue the trace of the client (`traceparent` in `_meta`). The tool's own server receives the call's
span in that field, so that an author's spans continue it. The provider is private: with a process-wide one,
the MCP SDK would make a span of each message, and no call could bypass it.

OpenTelemetry's batch processor sends them from its own thread; an unreachable collector loses spans, and
delays no call. The spans of steps are made after the answer.

Source: W3C Trace Context; OpenTelemetry semantic conventions for MCP; SEP-414 (`_meta.traceparent`).
"""

from collections.abc import Mapping
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span as CallSpan
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from runner.observation.call_record import MOST_NAME_CHARS, CallRecord, utf8

__all__ = ["CallSpan", "Spans"]

_NS = 1_000_000_000
_FIELDS = ("traceparent", "tracestate")


class Spans:
    """The spans of one server's calls.

    Args:
        version: Version of the runner.
        processor: Receives the spans; by default it sends them to the collector that the environment names.
    """

    def __init__(self, version: str, processor: SpanProcessor | None = None) -> None:
        # The environment's name of the service (OTEL_SERVICE_NAME) overrides ours.
        ours = Resource.create({"service.name": "toolcell", "service.version": version})
        resource = ours.merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor or BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("toolcell", version)
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, params: Mapping[str, Any]) -> tuple[CallSpan, dict[str, Any]]:
        """Begin the span of a call; return it, and the params that carry its context to the tool's server.

        Args:
            params: Params of the call, as on the wire.
        """
        meta = params.get("_meta")
        meta = dict(meta) if isinstance(meta, Mapping) else {}
        carrier = {key: meta[key] for key in _FIELDS if isinstance(meta.get(key), str)}
        name = utf8(f"tools/call {str(params.get('name'))[:MOST_NAME_CHARS]}")
        outer = self._propagator.extract(carrier, Context())
        span = self._tracer.start_span(name, outer, trace.SpanKind.SERVER)
        context: dict[str, str] = {}
        self._propagator.inject(context, trace.set_span_in_context(span, Context()))
        return span, {**params, "_meta": {**meta, **context}}

    def end(self, span: CallSpan, record: CallRecord) -> None:
        """End the span of a call, and make those of its steps, unless its trace is not sampled."""
        if not isinstance(span, ReadableSpan) or span.start_time is None:
            return
        before = span.start_time
        context = trace.set_span_in_context(span, Context())
        for step, done in record.steps:
            below = self._tracer.start_span(step, context, start_time=before)
            before = span.start_time + int(done * _NS)
            below.end(before)
        span.set_attributes(
            {
                "mcp.method.name": record.method,
                "gen_ai.tool.name": utf8(record.tool[:MOST_NAME_CHARS]) if record.is_known else "unknown",
                "enduser.id": utf8(record.user),
                "toolcell.call": record.id,
                "toolcell.outcome": record.outcome,
                "toolcell.tier": record.tier or "",
                "toolcell.worker": record.worker or "",
                "toolcell.denials": len(record.denials),
            }
        )
        if record.outcome != "ok":
            span.set_status(trace.StatusCode.ERROR, record.outcome)
        span.end(span.start_time + int(record.elapsed_s * _NS))

    def close(self) -> None:
        """Send pending spans; the SDK waits for a collector for up to 30 seconds."""
        self._provider.shutdown()
