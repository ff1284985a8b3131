"""Spans of calls as a collector gets them: steps stand below their call, unless that is not sampled."""

import time
from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from otlp_collector import collecting

from runner.observation.call_record import CallRecord
from runner.observation.spans import Spans

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
NS = 1_000_000_000


def record(outcome: str = "ok", tool: str = "shout") -> CallRecord:
    return CallRecord(
        id="call",
        user="ann",
        tool=tool,
        is_known=True,
        method="tools/call",
        outcome=outcome,
        elapsed_s=0.75,
        steps=[("stage", 0.25), ("run", 0.5)],
        inputs=[],
        outputs=[],
        tier="process",
        worker="kept",
        denials=[],
    )


def sent(meta: Mapping[str, str] | None, outcome: str = "ok") -> tuple[list[Any], str]:
    """Return the spans of one call, and the `traceparent` for the tool's server."""
    exporter = InMemorySpanExporter()
    spans = Spans("1", SimpleSpanProcessor(exporter))
    span, params = spans.begin({"name": "shout", "_meta": meta or {}})
    spans.end(span, record(outcome))
    return list(exporter.get_finished_spans()), params["_meta"]["traceparent"]


def test_each_step_of_a_call_has_a_span_below_the_calls_own() -> None:
    found, carrier = sent({"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=of-client"})

    call = next(span for span in found if span.name == "tools/call shout")
    steps = [span for span in found if span is not call]
    assert carrier == f"00-{TRACE}-{call.context.span_id:016x}-01"
    assert f"{call.parent.span_id:016x}" == PARENT
    assert call.parent.is_remote
    assert {f"{span.context.trace_id:032x}" for span in found} == {TRACE}
    assert {span.context.trace_state.get("vendor") for span in found} == {"of-client"}
    assert {span.parent.span_id for span in steps} == {call.context.span_id}
    assert len({span.context.span_id for span in found}) == 3
    assert [
        (span.name, (span.start_time - call.start_time) / NS, (span.end_time - call.start_time) / NS)
        for span in steps
    ] == [("stage", 0.0, 0.25), ("run", 0.25, 0.5)]
    assert (call.end_time - call.start_time) / NS == 0.75
    assert call.kind.name == "SERVER"
    assert call.status.status_code.name == "UNSET"
    assert call.attributes["enduser.id"] == "ann"
    assert {span.resource.attributes["service.name"] for span in found} == {"toolcell"}
    assert {span.instrumentation_scope.name for span in found} == {"toolcell"}


def test_call_without_trace_starts_one_and_records_error() -> None:
    found, carrier = sent(None, "E_TIMEOUT")

    call = next(span for span in found if span.name == "tools/call shout")
    assert call.parent is None
    assert carrier.split("-")[1] == f"{call.context.trace_id:032x}"
    assert (call.status.status_code.name, call.status.description) == ("ERROR", "E_TIMEOUT")


def test_unsampled_client_trace_is_propagated_and_not_exported() -> None:
    found, carrier = sent({"traceparent": f"00-{TRACE}-{PARENT}-00"})

    assert found == []
    assert carrier.startswith(f"00-{TRACE}-")
    assert carrier.endswith("-00")


@pytest.mark.parametrize(("share", "count"), [("0", 0), ("1", 3)])
def test_an_operator_chooses_how_many_calls_are_sampled(
    share: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", share)

    found, _ = sent(None, "E_TIMEOUT")

    assert len(found) == count


def test_the_last_spans_are_sent_with_odd_names_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        spans = Spans("1")
        for name in ("odd\ud800", "x" * 5000, "shout"):
            span, _ = spans.begin({"name": name})
            spans.end(span, record(tool=name))
        spans.close()

    assert len([span for span in collector.spans if span.name.startswith("tools/call")]) == 3


def test_unavailable_collector_is_logged_and_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with collecting() as collector:
        closed = collector.url
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", closed)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    spans = Spans("1")
    span, _ = spans.begin({"name": "shout"})
    spans.end(span, record())
    began = time.monotonic()
    spans.close()

    assert time.monotonic() - began < 30
    assert "export" in caplog.text.lower()
