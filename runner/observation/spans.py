"""Spans of calls for OpenTelemetry, which go to a collector over OTLP: one for each call, and for its steps.

They continue the trace of the client (`traceparent` in `_meta`), and the tool's own server is told of the
call's span in the same place, so that what an author records goes on from there. A provider of our own makes
them: the process-wide one would have the SDK record each message besides, and keep calls from the short way.

Source: W3C Trace Context; OpenTelemetry semantic conventions for MCP; SEP-414 (`_meta.traceparent`).
"""

from collections.abc import Mapping
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from runner.observation.call_record import CallRecord

__all__ = ["Spans"]

_NS = 1_000_000_000
_FIELDS = ("traceparent", "tracestate")
_NO_CONTEXT = Context()


class Spans:
    """Makes the spans of one server.

    Args:
        exporter: Where they go.
        version: Version of the runner.
    """

    def __init__(self, exporter: SpanExporter, *, version: str) -> None:
        # What the environment says of the service (OTEL_SERVICE_NAME) counts before ours.
        resource = Resource({"service.name": "toolcell", "service.version": version}).merge(Resource.create())
        if str(resource.attributes.get("service.name")).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "toolcell"}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._processor = BatchSpanProcessor(exporter)
        self._provider.add_span_processor(self._processor)
        self._tracer = self._provider.get_tracer("toolcell", version)
        self._scope = InstrumentationScope("toolcell", version)
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, params: Mapping[str, Any], *, began: float) -> tuple[trace.Span, dict[str, Any]]:
        """Begin the span of a call; return it, and the params that tell the tool's server of it.

        Args:
            params: Of the call, as on the wire.
            began: When it began, in seconds since the epoch.
        """
        meta = params.get("_meta")
        meta = dict(meta) if isinstance(meta, Mapping) else {}
        carrier = {key: meta[key] for key in _FIELDS if isinstance(meta.get(key), str)}
        span = self._tracer.start_span(
            f"tools/call {params.get('name')}",
            context=self._propagator.extract(carrier, Context()) if carrier else _NO_CONTEXT,
            kind=trace.SpanKind.SERVER,
            start_time=int(began * _NS),
        )
        told: dict[str, str] = {}
        self._propagator.inject(told, context=trace.set_span_in_context(span))
        return span, {**params, "_meta": {**meta, **told}}

    def end(self, span: trace.Span, record: CallRecord) -> None:
        """End the span of a call, with one below it for each step; at once where its trace is not sampled."""
        if not span.is_recording():
            return
        span.set_attributes(
            {
                "mcp.method.name": record.method,
                "gen_ai.tool.name": record.tool if record.is_known else "unknown",
                "enduser.id": record.user,
                "toolcell.call": record.id,
                "toolcell.outcome": record.outcome,
                "toolcell.tier": record.tier or "",
                "toolcell.worker": record.worker or "",
                "toolcell.denials": len(record.denials),
            }
        )
        if record.outcome != "ok":
            span.set_status(trace.StatusCode.ERROR, record.outcome)
        parent, before = span.get_span_context(), 0.0
        for step, done in record.steps:
            # They have ended, so nothing is to be locked, sampled or kept for changes: a fifth of the work.
            self._processor.on_end(
                ReadableSpan(
                    step,
                    context=self._below(parent),
                    parent=parent,
                    resource=self._provider.resource,
                    instrumentation_scope=self._scope,
                    start_time=int((record.began + before) * _NS),
                    end_time=int((record.began + done) * _NS),
                )
            )
            before = done
        span.end(int((record.began + record.elapsed_s) * _NS))

    def _below(self, parent: trace.SpanContext) -> trace.SpanContext:
        return trace.SpanContext(
            trace_id=parent.trace_id,
            span_id=self._provider.id_generator.generate_span_id(),
            is_remote=False,
            trace_flags=parent.trace_flags,
            trace_state=parent.trace_state,
        )

    def close(self) -> None:
        """Send what waits to be sent, and end."""
        self._provider.shutdown()
