"""The process that sends spans: no call waits for it, whether it is slow, full, gone or told to end."""

import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from audit_records import record
from otlp_collector import collecting
from support import alive, until

from runner.observation.sender_process import SenderProcess
from runner.observation.spans import Spans

# Writes what it is told into a file; the version, which comes last, is that file.
_WRITES = """
import sys
with open(sys.argv[1], "ab", buffering=0) as file:
    while line := sys.stdin.buffer.readline():
        file.write(line)
"""
_TAKES_NOTHING = "import time; time.sleep(60)"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def sender(program: str, file: Path, clock: Clock) -> Iterator[SenderProcess]:
    made = SenderProcess(str(file), command=(sys.executable, "-c", program), clock=clock)
    try:
        yield made
    finally:
        if alive(made.pid) and program == _TAKES_NOTHING:
            os.kill(made.pid, signal.SIGKILL)
        made.close()


def test_what_is_handed_on_arrives_before_the_process_is_gone(tmp_path: Path) -> None:
    with sender(_WRITES, tmp_path / "told", Clock()) as process:
        for number in range(300):
            process.send({"call": number})

    assert not alive(process.pid)
    assert len((tmp_path / "told").read_text().splitlines()) == 300


def test_what_a_slow_one_does_not_take_is_dropped_and_told_of_now_and_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    with (
        caplog.at_level(logging.WARNING),
        sender(_TAKES_NOTHING, tmp_path / "told", clock) as process,
    ):
        for number in range(3000):
            process.send({"call": number, "text": "x" * 1000})
        clock.now += 61
        process.send({"call": "last", "text": "x" * 1000})

    told = [record.__dict__["calls"] for record in caplog.records if "dropped" in record.message]
    assert told[0] == 1
    # A user who is not root has a pipe of the system's own size.
    assert 1900 < told[1] <= 3000
    assert len(told) == 2


def test_one_that_was_killed_is_started_anew_and_not_more_often_than_it_helps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, file = Clock(), tmp_path / "told"
    with caplog.at_level(logging.WARNING), sender(_WRITES, file, clock) as process:
        first = process.pid
        os.kill(first, signal.SIGKILL)
        assert until(lambda: not alive(first))
        process.send({"call": "dropped"})
        at_once = process.pid
        clock.now += 6
        process.send({"call": "taken"})
        second = process.pid

    assert at_once == first
    assert second != first
    assert file.read_text() == '{"call":"taken"}\n'
    assert "has ended and is started anew" in caplog.text


def test_what_is_too_long_for_the_pipe_does_not_spoil_what_follows(tmp_path: Path) -> None:
    with sender(_WRITES, tmp_path / "told", Clock()) as process:
        process.send({"name": "x" * 5000})
        process.send({"name": "short"})

    assert (tmp_path / "told").read_text() == '{"name":"short"}\n'


def test_the_real_one_sends_the_last_spans_though_everything_is_told_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        process = SenderProcess("1", "info", "json")
        spans = Spans(process.send)
        for _ in range(200):
            span, _ = spans.begin({"name": "shout"})
            spans.end(span, record(steps=[("run", 0.5)]))
        # At once, while it imports.
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(process.pid, number)
        process.close()

    names = [span.name for span in collector.spans]
    assert (names.count("tools/call shout"), names.count("run")) == (200, 200)
    assert not alive(process.pid)


def test_the_host_itself_hears_signals_as_before(tmp_path: Path) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with sender(_WRITES, tmp_path / "told", Clock()):
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_one_that_is_closed_is_not_started_anew(tmp_path: Path) -> None:
    clock = Clock()
    with sender(_WRITES, tmp_path / "told", clock) as process:
        process.send({"call": 1})
    clock.now += 60
    process.send({"call": 2})

    assert not alive(process.pid)
    assert (tmp_path / "told").read_text() == '{"call":1}\n'


def test_what_a_collector_cannot_be_told_is_in_the_log_in_its_form(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with collecting() as collector:
        closed = collector.url
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", closed)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    process = SenderProcess("1", "info", "json")
    spans = Spans(process.send)
    span, _ = spans.begin({"name": "shout"})
    spans.end(span, record())
    process.close()

    said = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert any("export" in line["event"].lower() for line in said), said


def test_half_of_a_surrogate_pair_loses_no_span(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        process = SenderProcess("1", "info", "text")
        spans = Spans(process.send)
        for name in ("odd\ud800", "x" * 5000, "shout"):
            span, _ = spans.begin({"name": name})
            spans.end(span, record(tool=name))
        process.close()

    assert len([span for span in collector.spans if span.name.startswith("tools/call")]) == 3
