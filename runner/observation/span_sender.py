"""The program that makes spans of what a host tells of its calls, and sends them to a collector over OTLP.

Its standard input has a line of JSON for each call. It ends when that does, once what it was told has been
sent; what ends its host is not for it to hear, so it is started with those signals blocked.

usage: python -P -m runner.observation.span_sender VERSION LOG_LEVEL LOG_FORMAT
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, cast

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from runner.system.logging_setup import set_up

__all__ = ["SpanMaker", "main"]

_NS = 1_000_000_000
_READ_BYTES = 1 << 16
# Between two looks at what was told: woken for each call, it would take a processor from a worker.
_PAUSE_S = 0.1
# So many spans are sent at once, and no more wait in this process: the rest waits with the host.
_BATCH = 500
_NICE = 10
_ids = RandomIdGenerator()


class SpanMaker:
    """Makes spans of what a host tells.

    Args:
        version: Version of the runner.
    """

    def __init__(self, version: str) -> None:
        # What the environment says of the service (OTEL_SERVICE_NAME) counts before ours.
        resource = Resource({"service.name": "toolcell", "service.version": version}).merge(Resource.create())
        if str(resource.attributes.get("service.name")).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "toolcell"}))
        self._resource = resource
        self._scope = InstrumentationScope("toolcell", version)

    def spans_of(self, told: Mapping[str, Any]) -> Iterator[ReadableSpan]:
        """Return the span of a call, and those of its steps, which stand below it.

        Args:
            told: `trace`, `span` and `parent`, its ids in hexadecimal; `state`, the trace state; `name`;
                `began`, in seconds since the epoch; `elapsed_s`; `steps`, each with its name and the seconds
                since `began` when it was done; `outcome`; `attributes`.
        """
        state = TraceState.from_header([told["state"]]) if told["state"] else TraceState()
        context = _context(told["trace"], int(told["span"], 16), state)
        remote = told["parent"] and _context(told["trace"], int(told["parent"], 16), state, is_remote=True)
        began, before = told["began"], 0.0
        is_error = told["outcome"] != "ok"
        for step, done in told["steps"]:
            below = _context(told["trace"], _ids.generate_span_id(), state)
            yield self._span(step, below, context, (began + before, began + done))
            before = done
        yield self._span(
            told["name"],
            context,
            remote or None,
            (began, began + told["elapsed_s"]),
            attributes={
                key: _utf8(item) if isinstance(item, str) else item
                for key, item in told["attributes"].items()
            },
            kind=SpanKind.SERVER,
            status=Status(StatusCode.ERROR, told["outcome"]) if is_error else Status(),
        )

    def _span(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        times: tuple[float, float],
        **more: Any,
    ) -> ReadableSpan:
        return ReadableSpan(
            _utf8(name),
            context=context,
            parent=parent,
            resource=self._resource,
            instrumentation_scope=self._scope,
            start_time=int(times[0] * _NS),
            end_time=int(times[1] * _NS),
            **more,
        )


def main() -> None:
    """Send spans until the host ends."""
    # Calls come first where processors are few.
    os.nice(_NICE)
    version, level, form = sys.argv[1:]
    set_up(cast("Any", level), cast("Any", form))
    maker, processor = SpanMaker(version), BatchSpanProcessor(OTLPSpanExporter())
    waiting = 0
    for line in _lines():
        for span in maker.spans_of(json.loads(line)):
            processor.on_end(span)
            waiting += 1
        if waiting >= _BATCH:
            processor.force_flush()
            waiting = 0
    processor.shutdown()  # type: ignore[no-untyped-call]


def _lines() -> Iterator[bytes]:
    rest = b""
    while data := os.read(sys.stdin.fileno(), _READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines
        time.sleep(_PAUSE_S)


def _utf8(text: str) -> str:
    """Return a text without half a surrogate pair, which is no UTF-8 and would lose all spans beside it."""
    return text.encode("utf-8", "replace").decode()


def _context(trace: str, span: int, state: TraceState, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(
        trace_id=int(trace, 16),
        span_id=span,
        is_remote=is_remote,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
        trace_state=state,
    )


if __name__ == "__main__":
    main()
