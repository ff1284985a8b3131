"""Spans of calls as a collector gets them: steps stand below their call, unless that is not sampled."""

from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from runner.observation.call_record import CallRecord
from runner.observation.spans import Spans

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
BEGAN = 1_000_000.0
NS = 1_000_000_000


def record(outcome: str = "ok") -> CallRecord:
    return CallRecord(
        id="call",
        user="ann",
        tool="shout",
        is_known=True,
        method="tools/call",
        outcome=outcome,
        began=BEGAN,
        elapsed_s=0.75,
        steps=[("stage", 0.25), ("run", 0.5)],
        arguments={},
        inputs=[],
        outputs=[],
        tier="process",
        worker="kept",
        denials=[],
    )


def sent(flags: str) -> tuple[list[Any], str]:
    """Return what a collector gets of one call of a client's trace, and what the tool's server is told."""
    exporter = InMemorySpanExporter()
    spans = Spans(exporter, version="1")
    meta = {"traceparent": f"00-{TRACE}-{PARENT}-{flags}"}
    span, params = spans.begin({"name": "shout", "_meta": meta}, began=BEGAN)
    spans.end(span, record())
    spans.close()
    return list(exporter.get_finished_spans()), params["_meta"]["traceparent"]


def test_each_step_of_a_call_has_a_span_below_the_calls_own() -> None:
    found, told = sent("01")

    call = next(span for span in found if span.name == "tools/call shout")
    steps = [span for span in found if span is not call]
    assert told == f"00-{TRACE}-{call.context.span_id:016x}-01"
    assert f"{call.parent.span_id:016x}" == PARENT
    assert {f"{span.context.trace_id:032x}" for span in found} == {TRACE}
    assert {span.parent.span_id for span in steps} == {call.context.span_id}
    assert len({span.context.span_id for span in found}) == 3
    assert [
        (span.name, (span.start_time - BEGAN * NS) / NS, (span.end_time - BEGAN * NS) / NS) for span in steps
    ] == [("stage", 0.0, 0.25), ("run", 0.25, 0.5)]
    assert {span.resource.attributes["service.name"] for span in found} == {"toolcell"}
    assert {span.instrumentation_scope.name for span in found} == {"toolcell"}


def test_a_trace_that_its_client_does_not_sample_goes_on_and_sends_nothing() -> None:
    found, told = sent("00")

    assert found == []
    assert told.startswith(f"00-{TRACE}-")
    assert told.endswith("-00")


@pytest.mark.parametrize(("share", "count"), [("0", 0), ("1", 3)])
def test_an_operator_chooses_how_many_calls_are_sampled(
    share: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", share)
    exporter = InMemorySpanExporter()
    spans = Spans(exporter, version="1")

    span, _ = spans.begin({"name": "shout"}, began=BEGAN)
    spans.end(span, record("E_TIMEOUT"))
    spans.close()

    assert len(exporter.get_finished_spans()) == count
