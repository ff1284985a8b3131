"""Spans of calls for OpenTelemetry: one for each call, with its steps below it.

They continue the trace of the client (`traceparent` in `_meta`), and the tool's own server is told of the
call's span in the same place, so that what an author records goes on from there. A provider of our own
samples them: the process-wide one would have the SDK record each message besides, and keep calls from the
short way.

Spans are made once a call has been answered, several calls at a time. The SDK's batch processor sends them
from a thread of its own; a collector that is away costs spans and no call.

Source: W3C Trace Context; OpenTelemetry semantic conventions for MCP; SEP-414 (`_meta.traceparent`).
"""

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from runner.observation.call_record import MOST_NAME_CHARS, CallRecord

__all__ = ["CallSpan", "Spans"]

log = logging.getLogger(__name__)

_NS = 1_000_000_000
# Longest wait for a collector as the host ends.
_END_S = 10.0

_FIELDS = ("traceparent", "tracestate")
_NO_CONTEXT = Context()
_SAMPLED = trace.TraceFlags(trace.TraceFlags.SAMPLED)
_NOT_SAMPLED = trace.TraceFlags(trace.TraceFlags.DEFAULT)


@dataclass(frozen=True, slots=True)
class CallSpan:
    """The span of a call that has begun.

    Attributes:
        name: Its name.
        context: Its ids, and whether its trace is sampled.
        parent: Its client's, if that has told of one.
    """

    name: str
    context: trace.SpanContext
    parent: trace.SpanContext | None


class Spans:
    """Begins the spans of one server's calls, and makes those of each that has ended.

    Args:
        version: Version of the runner.
        processor: Takes the spans; by default they are sent to the collector that the environment names.
    """

    def __init__(self, version: str, processor: SpanProcessor | None = None) -> None:
        # Which traces are sampled, and how ids are made, the environment says.
        provider = TracerProvider(shutdown_on_exit=False)
        self._sampler, self._ids = provider.sampler, provider.id_generator
        self._propagator = TraceContextTextMapPropagator()
        # What the environment says of the service (OTEL_SERVICE_NAME) counts before ours.
        resource = Resource({"service.name": "toolcell", "service.version": version}).merge(Resource.create())
        if str(resource.attributes.get("service.name")).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "toolcell"}))
        self._resource, self._scope = resource, InstrumentationScope("toolcell", version)
        self._processor = BatchSpanProcessor(OTLPSpanExporter()) if processor is None else processor

    def begin(self, params: Mapping[str, Any]) -> "tuple[CallSpan, dict[str, Any]]":
        """Begin the span of a call; return it, and the params that tell the tool's server of it.

        Args:
            params: Of the call, as on the wire.
        """
        meta = params.get("_meta")
        meta = dict(meta) if isinstance(meta, Mapping) else {}
        carrier = {key: meta[key] for key in _FIELDS if isinstance(meta.get(key), str)}
        outer = self._propagator.extract(carrier, Context()) if carrier else _NO_CONTEXT
        parent = trace.get_current_span(outer).get_span_context() if carrier else None
        if parent is not None and not parent.is_valid:
            parent = None
        name = f"tools/call {str(params.get('name'))[:MOST_NAME_CHARS]}"
        trace_id = self._ids.generate_trace_id() if parent is None else parent.trace_id
        sampled = self._sampler.should_sample(outer, trace_id, name, trace.SpanKind.SERVER)
        context = trace.SpanContext(
            trace_id,
            self._ids.generate_span_id(),
            is_remote=False,
            trace_flags=_SAMPLED if sampled.decision is Decision.RECORD_AND_SAMPLE else _NOT_SAMPLED,
            trace_state=sampled.trace_state,
        )
        told: dict[str, str] = {}
        self._propagator.inject(told, trace.set_span_in_context(trace.NonRecordingSpan(context), Context()))
        return CallSpan(name, context, parent), {**params, "_meta": {**meta, **told}}

    def end(self, span: "CallSpan", record: CallRecord) -> None:
        """Make the span of a call that has ended, and those of its steps, unless its trace is not sampled."""
        if not span.context.trace_flags.sampled:
            return
        before = 0.0
        for step, done in record.steps:
            context = trace.SpanContext(
                span.context.trace_id,
                self._ids.generate_span_id(),
                is_remote=False,
                trace_flags=_SAMPLED,
                trace_state=span.context.trace_state,
            )
            self._send(step, context, span.context, record.began + before, record.began + done)
            before = done
        is_error = record.outcome != "ok"
        self._send(
            span.name,
            span.context,
            span.parent,
            record.began,
            record.began + record.elapsed_s,
            kind=trace.SpanKind.SERVER,
            status=trace.Status(trace.StatusCode.ERROR, record.outcome) if is_error else trace.Status(),
            attributes={
                "mcp.method.name": record.method,
                "gen_ai.tool.name": _utf8(record.tool[:MOST_NAME_CHARS]) if record.is_known else "unknown",
                "enduser.id": _utf8(record.user),
                "toolcell.call": record.id,
                "toolcell.outcome": record.outcome,
                "toolcell.tier": record.tier or "",
                "toolcell.worker": record.worker or "",
                "toolcell.denials": len(record.denials),
            },
        )

    def close(self) -> None:
        """Send what waits, for ten seconds at most."""
        # Of its own it waits for thirty.
        ending = threading.Thread(target=self._processor.shutdown, daemon=True)
        ending.start()
        ending.join(_END_S)
        if ending.is_alive():
            log.warning("spans dropped at shutdown")

    def _send(
        self,
        name: str,
        context: trace.SpanContext,
        parent: trace.SpanContext | None,
        began: float,
        ended: float,
        **more: Any,
    ) -> None:
        self._processor.on_end(
            ReadableSpan(
                _utf8(name),
                context=context,
                parent=parent,
                resource=self._resource,
                instrumentation_scope=self._scope,
                start_time=int(began * _NS),
                end_time=int(ended * _NS),
                **more,
            )
        )


def _utf8(text: str) -> str:
    """Return a text without half a surrogate pair, which is not UTF-8 and would lose the whole batch."""
    return text.encode("utf-8", "replace").decode()
