"""Spans of calls for OpenTelemetry: one for each call, with its steps below it.

They continue the trace of the client (`traceparent` in `_meta`), and the tool's own server is told of the
call's span in the same place, so that what an author records goes on from there. A provider of our own
samples them: the process-wide one would have the SDK record each message besides, and keep calls from the
short way.

What is told of a call that has ended goes to a process of its own (`runner.observation.span_sender`), which
makes the spans of the steps and sends all of them: in the host that would take as long as a call.

Source: W3C Trace Context; OpenTelemetry semantic conventions for MCP; SEP-414 (`_meta.traceparent`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from runner.observation.call_record import MOST_NAME_CHARS, CallRecord

__all__ = ["CallSpan", "Spans"]

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
    """Begins the spans of one server's calls, and tells of each that has ended.

    Args:
        send: Takes what is told of a call, as JSON values; `runner.observation.span_sender` says which.
    """

    def __init__(self, send: Callable[[Mapping[str, Any]], None]) -> None:
        self._send = send
        # Which traces are sampled, and how ids are made, the environment says.
        provider = TracerProvider(shutdown_on_exit=False)
        self._sampler, self._ids = provider.sampler, provider.id_generator
        self._propagator = TraceContextTextMapPropagator()

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
        """Tell of a call that has ended, unless its trace is not sampled."""
        context, parent = span.context, span.parent
        if not context.trace_flags.sampled:
            return
        self._send(
            {
                "trace": f"{context.trace_id:032x}",
                "span": f"{context.span_id:016x}",
                "parent": None if parent is None else f"{parent.span_id:016x}",
                "state": context.trace_state.to_header(),
                "name": span.name,
                "began": record.began,
                "elapsed_s": record.elapsed_s,
                "steps": list(record.steps),
                "outcome": record.outcome,
                "attributes": {
                    "mcp.method.name": record.method,
                    "gen_ai.tool.name": record.tool[:MOST_NAME_CHARS] if record.is_known else "unknown",
                    "enduser.id": record.user,
                    "toolcell.call": record.id,
                    "toolcell.outcome": record.outcome,
                    "toolcell.tier": record.tier or "",
                    "toolcell.worker": record.worker or "",
                    "toolcell.denials": len(record.denials),
                },
            }
        )
