"""Metrics: what is counted of calls, labels with few values, and the dashboard drawn from them."""

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from runner.observation.call_record import CallRecord, FileFacts
from runner.observation.metrics import MOST_TOOLS, Gauges, Metrics

ROOT = Path(__file__).parents[2]


def ended(tool: str = "report", *, known: bool = True, outcome: str = "ok") -> CallRecord:
    return CallRecord(
        id="c",
        user="alice",
        tool=tool,
        is_known=known,
        outcome=outcome,
        elapsed_s=0.3,
        steps=(("admit", 0.1), ("run", 0.3)),
        outputs=(FileFacts(sha256=None, bytes=40),),
        denials=(("open", "landlock"),),
    )


def samples(
    metrics: Metrics, now: Gauges | None = None
) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = metrics.exposition(now or Gauges()).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def labels(**values: str) -> frozenset[tuple[str, str]]:
    return frozenset(values.items())


def test_call_metrics_count_time_steps_files_and_denials() -> None:
    metrics = Metrics()
    metrics.call_ended(ended())
    metrics.call_ended(ended())

    found = samples(metrics)
    assert found["toolcell_calls_total", labels(tool="report", outcome="ok")] == 2
    assert found["toolcell_call_seconds_sum", labels(tool="report")] == 0.6
    assert found["toolcell_call_seconds_bucket", labels(tool="report", le="0.25")] == 0
    assert found["toolcell_call_seconds_bucket", labels(tool="report", le="0.5")] == 2
    assert round(found["toolcell_step_seconds_sum", labels(step="run")], 6) == 0.4
    assert found["toolcell_denials_total", labels(operation="open", layer="landlock")] == 2
    assert found["toolcell_file_bytes_total", labels(way="out")] == 80


def test_unknown_tool_names_share_one_label() -> None:
    metrics = Metrics()
    for number in range(50):
        metrics.call_ended(ended(f"no tool {number}", known=False, outcome="E_TOOL_NOT_FOUND"))

    counted = {key for key in samples(metrics) if key[0] == "toolcell_calls_total"}
    assert counted == {("toolcell_calls_total", labels(tool="unknown", outcome="E_TOOL_NOT_FOUND"))}


def test_gauges_hold_only_current_values() -> None:
    metrics = Metrics()
    busy = Gauges(running=3, retired={"age": 2}, user_memory={"alice": 7}, faults=("tools",))

    first, second = samples(metrics, busy), samples(metrics, Gauges())
    assert first["toolcell_calls_running", labels()] == 3
    assert first["toolcell_workers_retired_total", labels(reason="age")] == 2
    assert first["toolcell_user_memory_bytes", labels(user="alice")] == 7
    assert (first["toolcell_ready", labels()], second["toolcell_ready", labels()]) == (0, 1)
    assert ("toolcell_user_memory_bytes", labels(user="alice")) not in second


def test_dashboard_and_docs_name_only_existing_metrics() -> None:
    metrics = Metrics()
    metrics.call_ended(ended())
    everything = Gauges(retired={"age": 1}, user_memory={"alice": 1}, faults=("tools",), stored_bytes=1)
    there = {name for name, _ in samples(metrics, everything)}
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "toolcell.json").read_text())
    queried = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\b(?:toolcell|process)_\w+", target["expr"])
    }
    documented = set(re.findall(r"`(toolcell_\w+)`", (ROOT / "docs" / "operating.md").read_text()))

    assert len(queried) > 10
    assert queried <= there
    families = {re.sub(r"_(bucket|sum|count)$", "", n) for n in there if not n.endswith("_created")}
    assert documented <= families
    assert {name for name in families if name.startswith("toolcell_")} == documented


def test_unbounded_tool_names_share_one_metric_label() -> None:
    metrics = Metrics()

    for number in range(MOST_TOOLS + 50):
        metrics.call_ended(ended(f"tool_{number}"))

    found = samples(metrics)
    tools = {dict(labels)["tool"] for name, labels in found if name == "toolcell_calls_total"}
    assert len(tools) == MOST_TOOLS + 1
    assert found["toolcell_calls_total", labels(tool="other", outcome="ok")] == 50


def test_metric_name_with_lone_surrogate_does_not_break_others() -> None:
    metrics = Metrics()

    metrics.call_ended(ended("odd\ud800"))
    metrics.call_ended(ended('two\nlines"'))

    found = samples(metrics, Gauges(user_memory={"ann\udfff": 7}))
    assert found["toolcell_calls_total", labels(tool="odd\\ud800", outcome="ok")] == 1
    assert found["toolcell_calls_total", labels(tool='two\nlines"', outcome="ok")] == 1
    assert found["toolcell_user_memory_bytes", labels(user="ann\\udfff")] == 7
