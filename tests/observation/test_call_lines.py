"""Two lines of the audit log for each call: `begin` while it runs, and `call` after its answer."""

import asyncio
import gc
import io
import logging
import subprocess
import sys
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from audit_records import SECRET, lines, record
from disks import fill, small_disk
from support import becomes

from runner.errors import CallError, Code
from runner.observation.audit_log import AuditLog, verify
from runner.observation.call_record import CallRecord
from runner.observation.observers import Observers
from runner.steps.call import Call, observed
from runner.steps.listener import CallListener, Nobody
from runner.steps.request import Completed, Request
from runner.system import logging_setup
from runner.system.logging_setup import CallScope
from runner.toolset.session_state import SessionState
from runner.users.identity import User
from runner.worker.wire import LATEST_PROTOCOL, RequestFacts
from sandbox.deadlines import Deadlines
from sandbox.probe.machine import Tier

pytestmark = pytest.mark.needs_root

MIB = 1 << 20
# Records one call, and has begun another one when it is killed.
_HOST = """
import sys, time
from pathlib import Path
from audit_records import SECRET, record
from runner.observation.audit_log import AuditLog
log = AuditLog(Path(sys.argv[1]), max_bytes=1 << 20)
for call in ("recorded", "unended"):
    said = {"call": call, "user": "alice", "method": "tools/call", "tool": "report"}
    digest = log.begin(said, {"text": SECRET})
    if call == "recorded":
        log.calls_ended([(record(id=call), digest)])
print("written", flush=True)
time.sleep(60)
"""


def opened(folder: Path) -> AuditLog:
    return AuditLog(folder, max_bytes=MIB)


def facts(call: str = "c1") -> dict[str, str]:
    return {"call": call, "user": "alice", "method": "tools/call", "tool": "report"}


def begin(log: AuditLog, call: str = "c1") -> Callable[[], str]:
    return partial(log.begin, facts(call), {"text": SECRET})


def kinds(folder: Path) -> list[tuple[object, object]]:
    return [(line["kind"], line["call"]) for line in lines(folder)]


def outcomes(folder: Path) -> list[tuple[object, object]]:
    return [(line["call"], line["outcome"]) for line in lines(folder) if line["kind"] == "call"]


def test_a_killed_host_leaves_begin_without_end_beside_others(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOST, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
        env={"PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parents[2]}"},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    process.kill()
    process.communicate()

    log = opened(tmp_path)
    log.calls_ended([(record(id="c1"), begin(log)())])
    log.close()
    verdict = verify(tmp_path)

    assert verdict.is_whole
    assert list(verdict.open_calls) == ["unended"]
    assert verdict.open_calls["unended"].startswith("alice report, began 20")
    assert kinds(tmp_path) == [
        ("begin", "recorded"),
        ("call", "recorded"),
        ("begin", "unended"),
        ("begin", "c1"),
        ("call", "c1"),
    ]


def test_a_first_line_holds_no_argument(tmp_path: Path) -> None:
    log = opened(tmp_path)
    digest = begin(log)()
    log.close()
    (line,) = lines(tmp_path)

    assert SECRET not in str(line)
    assert line["arguments"] == digest == log.digest({"text": SECRET})


def test_the_begin_is_written_before_the_answer(tmp_path: Path) -> None:
    log = opened(tmp_path)
    observers = Observers(audit=log)

    async def end() -> None:
        observers.call_ended(record(), begin=begin(log))
        assert kinds(tmp_path) == [("begin", "c1")]
        assert await becomes(lambda: len(lines(tmp_path)) == 2)

    asyncio.run(end())
    log.close()

    assert kinds(tmp_path) == [("begin", "c1"), ("call", "c1")]


def test_a_full_disk_keeps_both_lines_waiting(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", mib=1) as disk:
        log = AuditLog(disk / "audit", max_bytes=MIB)
        filler = fill(disk)
        observers = Observers(audit=log)

        async def end() -> None:
            observers.call_ended(record(), begin=begin(log))
            observers.record_ended()
            assert log.pending == 2

        asyncio.run(end())
        filler.unlink()
        log.flush()
        log.close()

        assert kinds(disk / "audit") == [("begin", "c1"), ("call", "c1")]


def test_a_full_file_is_closed_by_the_sync(tmp_path: Path) -> None:
    def open_files() -> int:
        return sum(
            ".jsonl" in str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()
        )

    log = AuditLog(tmp_path, max_bytes=1000)
    for number in range(10):
        begin(log, f"c{number}")()
    before = open_files()

    log.sync()

    # The event loop writes to the next file; a thread waits for the disk.
    assert before == len(list(tmp_path.glob("*.jsonl"))) > 2
    assert open_files() == 1
    log.close()
    assert verify(tmp_path).is_whole


def test_calls_ending_with_the_host_are_recorded(tmp_path: Path) -> None:
    log = opened(tmp_path)
    observers = Observers(audit=log)

    async def end() -> None:
        observers.call_ended(record(), begin=begin(log))
        observers.record_ended()
        observers.close()

    asyncio.run(end())

    assert outcomes(tmp_path) == [("c1", "ok")]


def test_call_arguments_are_freed_while_record_waits(tmp_path: Path) -> None:
    class Given(dict[str, str]):
        """Arguments to which there can be a weak reference."""

    log = opened(tmp_path)
    observers = Observers(audit=log)
    arguments = Given(text=SECRET)
    gone = weakref.ref(arguments)

    async def end() -> None:
        nonlocal arguments
        observers.call_ended(record(), begin=observers.begin_line(facts(), arguments))
        del arguments
        await asyncio.sleep(0)
        gc.collect()
        assert gone() is None
        assert kinds(tmp_path) == [("begin", "c1")]
        observers.record_ended()

    asyncio.run(end())
    log.close()

    assert kinds(tmp_path) == [("begin", "c1"), ("call", "c1")]


def test_a_recipient_that_fails_for_one_call_leaves_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = opened(tmp_path)
    counted: list[str] = []

    class Fails:
        """Recipient that fails for one call, in place of the metrics."""

        def call_ended(self, record: CallRecord) -> None:
            if record.id == "c2":
                raise ValueError("not counted")
            counted.append(record.id)

    observers = Observers(audit=log, metrics=Fails())  # type: ignore[arg-type]

    async def end() -> None:
        for call in ("c1", "c2", "c3"):
            observers.call_ended(record(id=call), begin=begin(log, call))
        observers.record_ended()

    asyncio.run(end())
    log.close()

    assert counted == ["c1", "c3"]
    assert outcomes(tmp_path) == [("c1", "ok"), ("c2", "ok"), ("c3", "ok")]
    assert "call record failed" in caplog.text


def test_record_about_many_calls_has_no_call_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", root.handlers)
    logging_setup.set_up("info", "json", stream=io.StringIO())
    (handler,) = root.handlers
    log = opened(tmp_path)
    ids: list[str | None] = []

    class Heard:
        """Recipient of calls in place of the metrics."""

        def call_ended(self, _: CallRecord) -> None:
            written = logging.makeLogRecord({})
            handler.filter(written)
            ids.append(written.__dict__["call_id"])

    observers = Observers(audit=log, metrics=Heard())  # type: ignore[arg-type]

    async def end() -> None:
        with CallScope("c1"):
            observers.call_ended(record(id="c1"), begin=begin(log, "c1"))
        assert await becomes(lambda: len(ids) == 1)

    asyncio.run(end())
    log.close()

    assert ids == [None]


def test_a_closed_log_takes_no_line(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.close()

    begin(log)()

    assert not lines(tmp_path)


def test_call_cancelled_while_failure_is_worded_is_recorded(tmp_path: Path) -> None:
    log = opened(tmp_path)

    class Files:
        """My Files of somebody whose store does not answer."""

        async def nearest(self, _name: str) -> list[str]:
            started.set()
            await asyncio.sleep(60)
            return []

    started = asyncio.Event()
    service: Any = SimpleNamespace(
        observers=Observers(audit=log), files=lambda *_, **__: Files(), tier=Tier.PROCESS
    )
    request = _request()

    class NoFile(Call):
        passed_on = LookupError

        async def execute(self) -> Completed:
            raise CallError(Code.E_FILE_NOT_FOUND, "there is none", details={"name": "x"})

    async def cancelled() -> None:
        listener = CallListener(
            client=request.client,
            params=request.params,
            levels=request.levels,
            deadlines=Deadlines(),
            user="alice",
            state=SessionState(),
        )
        call = NoFile(service=service, request=observed(service, request), listener=listener)
        task = asyncio.create_task(call.run())
        await started.wait()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        service.observers.record_ended()

    asyncio.run(cancelled())
    log.close()

    assert [outcome for _, outcome in outcomes(tmp_path)] == ["E_CANCELLED"]


def _request() -> Request:
    return Request(
        user=User("alice"),
        method="tools/call",
        params={"name": "report", "arguments": {"filename": "x"}},
        facts=RequestFacts(request_id=1, protocol=LATEST_PROTOCOL, session_id="s", transport="stdio"),
        client=Nobody(),
        inline_max_bytes=0,
    )
