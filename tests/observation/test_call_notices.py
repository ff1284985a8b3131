"""Calls under way when their host ends: whoever opens the audit log next records them, and no other."""

import asyncio
import errno
import gc
import json
import logging
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from audit_records import SECRET, lines, record
from disks import fill, small_disk
from support import becomes

from runner.errors import CallError, Code
from runner.observation.audit_chain import verify
from runner.observation.audit_log import HOST_ENDED, AuditLog, NotedCall
from runner.observation.call_log import CallLine
from runner.observation.call_record import CallRecord
from runner.observation.observers import Observers
from runner.steps.execution import Request, conclude, observed
from runner.steps.listener import Nobody
from runner.system import logging_setup
from runner.system.logging_setup import CallScope
from runner.users.identity import User
from runner.worker.wire import LATEST_PROTOCOL, RequestFacts
from sandbox.probe.machine import Tier

pytestmark = pytest.mark.needs_root

MIB = 1 << 20
FACTS = {"call": "c", "user": "u", "method": "m", "tool": "t", "began": "1.5", "arguments": "a"}
LINE = CallLine(call="c1", user="alice", tool="report", outcome="ok", ended=0.0, elapsed_ms=1.0)
# Notes a call and answers it, and has not recorded it when it is killed; another one it has.
_HOST = """
import sys, time
from pathlib import Path
from audit_records import SECRET, record
from runner.observation.audit_log import AuditLog, NotedCall
log = AuditLog.open(Path(sys.argv[1]), max_bytes=1 << 20)
for call in ("recorded", "answered"):
    said = {"call": call, "user": "alice", "method": "tools/call", "tool": "report"}
    noted = NotedCall(log=log, said=said, arguments={"text": SECRET}, began=time.time())
    assert noted.write()
    if call == "recorded":
        log.calls_ended([(record(id=call), noted)])
print("answered", flush=True)
time.sleep(60)
"""


def opened(folder: Path) -> AuditLog:
    return AuditLog.open(folder, max_bytes=MIB)


def noted(log: AuditLog, call: str = "c1", tool: str = "report") -> NotedCall:
    said = {"call": call, "user": "alice", "method": "tools/call", "tool": tool}
    return NotedCall(log=log, said=said, arguments={"text": SECRET}, began=0.0)


def notices(folder: Path) -> list[Path]:
    return list(folder.glob("*.notices"))


def outcomes(folder: Path) -> list[tuple[object, object]]:
    return [(line["call"], line["outcome"]) for line in lines(folder)]


def host(folder: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", _HOST, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
        env={"PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parents[2]}"},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "answered\n"
    return process


def test_a_call_that_a_killed_host_has_answered_is_recorded_by_the_next(tmp_path: Path) -> None:
    process = host(tmp_path)
    opened(tmp_path).close()
    while_it_runs = outcomes(tmp_path), verify(tmp_path).notes
    process.kill()
    process.communicate()
    told = verify(tmp_path)

    log = opened(tmp_path)
    digest = log.digest({"text": SECRET})
    log.close()

    assert while_it_runs == ([("recorded", "ok")], ())
    assert told.is_whole
    assert any("1 calls of a host that has ended are not recorded yet" in note for note in told.notes)
    assert outcomes(tmp_path) == [("recorded", "ok"), ("answered", HOST_ENDED)]
    left = lines(tmp_path)[1]
    assert abs(datetime.fromisoformat(left["began"]).timestamp() - time.time()) < 3600
    assert (left["user"], left["tool"], left["arguments"]) == ("alice", "report", digest)
    assert not notices(tmp_path)
    assert verify(tmp_path).is_whole


def test_no_notice_holds_what_a_call_was_given(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert noted(log).write()
    (file,) = notices(tmp_path)
    content = file.read_text()
    log.close()

    assert "alice" in content
    assert SECRET not in content


def test_a_notice_is_taken_back_with_its_record_and_its_place_is_used_again(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for number in range(50):
        one = noted(log, f"c{number}")
        assert one.write()
        log.calls_ended([(record(id=f"c{number}"), one)])
    (file,) = notices(tmp_path)
    size = file.stat().st_size
    log.close()
    opened(tmp_path).close()

    assert size == 1024
    assert not notices(tmp_path)
    assert outcomes(tmp_path) == [(f"c{number}", "ok") for number in range(50)]


def test_a_host_that_ends_by_itself_leaves_what_it_has_not_recorded(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert noted(log).write()
    log.close()
    assert not outcomes(tmp_path)

    opened(tmp_path).close()

    assert outcomes(tmp_path) == [("c1", HOST_ENDED)]


async def _answered(log: AuditLog, one: NotedCall) -> tuple[list[object], list[object]]:
    """Return the calls in the log when a call has ended and may be answered, and those soon after."""
    observers = Observers(audit=log)
    observers.call_ended(LINE, record, noted=one)
    before = [line["call"] for line in lines(log.folder)]
    assert await becomes(lambda: len(lines(log.folder)) == 1)
    return before, [line["call"] for line in lines(log.folder)]


def test_a_record_is_written_after_the_answer_where_there_is_a_notice(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert asyncio.run(_answered(log, noted(log))) == ([], ["c1"])
    log.close()


def test_a_record_is_written_before_the_answer_where_there_is_no_room_for_a_notice(tmp_path: Path) -> None:
    log = opened(tmp_path)
    # As JSON each of its letters takes twelve.
    one = noted(log, tool="\U0001f600" * 128)
    assert not one.write()

    assert asyncio.run(_answered(log, one)) == (["c1"], ["c1"])
    log.close()


def test_on_a_full_disk_no_call_is_answered_without_a_word_of_it(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", mib=1) as disk:
        log = AuditLog.open(disk / "audit", max_bytes=MIB)
        filler = fill(disk)
        one = noted(log)
        observers = Observers(audit=log)

        async def end() -> None:
            observers.call_ended(LINE, record, noted=one)
            # In memory, as all that a full disk does not take.
            assert log.pending == 1

        asyncio.run(end())
        filler.unlink()
        log.flush()
        log.close()

        assert [line["call"] for line in lines(disk / "audit")] == ["c1"]


def test_what_ends_with_the_host_is_recorded_before_it_goes(tmp_path: Path) -> None:
    log = opened(tmp_path)
    observers = Observers(audit=log)
    one = noted(log)

    async def end() -> None:
        observers.call_ended(LINE, record, noted=one)
        observers.tell()
        observers.close()

    asyncio.run(end())

    assert outcomes(tmp_path) == [("c1", "ok")]
    assert not notices(tmp_path)


@pytest.mark.parametrize(
    ("garbage", "calls"),
    [
        (b"x" * 1023 + b"\n", 1),
        (b'{"call": ["a", "list"]}'.ljust(1023) + b"\n", 1),
        # Cut short by a full disk: it never was one.
        (b'{"call": "c2"', 0),
    ],
)
def test_lines_that_are_no_notice_are_kept_for_the_operator(
    garbage: bytes, calls: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = opened(tmp_path)
    assert noted(log).write()
    log.close()
    (file,) = notices(tmp_path)
    with file.open("ab") as end:
        end.write(garbage)

    with caplog.at_level(logging.ERROR):
        opened(tmp_path).close()

    assert outcomes(tmp_path) == [("c1", HOST_ENDED)]
    assert len(list(tmp_path.glob("*.notices*"))) == calls
    assert ("set apart" in caplog.text) == bool(calls)


def test_what_only_has_the_name_of_notices_stays_as_it_is(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x" * 1023 + "\n")
    folder = tmp_path / "audit"
    opened(folder).close()
    link = folder / f"under-way-{'0' * 16}.notices"
    link.symlink_to(secret)
    (folder / f"under-way-{'1' * 16}.notices").mkdir()

    opened(folder).close()

    assert link.is_symlink()
    assert secret.exists()
    assert (folder / f"under-way-{'1' * 16}.notices").is_dir()
    assert not list(folder.glob("*.jsonl"))


def _left(folder: Path, count: int) -> None:
    """Leave the notices of so many calls, as a host does that is killed."""
    log = opened(folder)
    for number in range(count):
        assert noted(log, f"c{number}").write()
    log.close()


def test_what_a_full_disk_does_not_take_waits_where_it_is_and_is_recorded_once(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", mib=1) as disk:
        folder = disk / "audit"
        _left(folder, 60)
        log = opened(folder)
        before = len(lines(folder))
        log.close()
        _left(folder, 60)
        filler = fill(disk)
        log = opened(folder)
        for _ in range(20):
            log.record_left()
        waiting, refuses = log.pending, _refuses(log)
        filler.unlink()
        log.record_left()
        log.close()

        assert before == 60
        assert (waiting, refuses) == (0, False)
        assert len(lines(folder)) == 120
        assert not notices(folder)


def _refuses(log: AuditLog) -> bool:
    try:
        log.check()
    except CallError:
        return True
    return False


def test_a_file_that_cannot_be_removed_is_recorded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _left(tmp_path, 3)

    def unlink(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", unlink)
        log = opened(tmp_path)
        for _ in range(20):
            log.record_left()
        log.close()

    assert sorted(outcomes(tmp_path)) == [(f"c{number}", HOST_ENDED) for number in range(3)]
    assert "cannot be removed" in caplog.text


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"seq": "77", **FACTS},
        {name: item for name, item in FACTS.items() if name != "arguments"},
        {**FACTS, "call": 1},
        {**FACTS, "began": "never"},
        {**FACTS, "began": "nan"},
        {**FACTS, "began": "1e300"},
    ],
)
def test_a_line_with_other_facts_is_no_notice_and_breaks_no_chain(
    line: dict[str, object], tmp_path: Path
) -> None:
    _left(tmp_path, 1)
    (file,) = notices(tmp_path)
    with file.open("ab") as end:
        end.write(json.dumps(line).encode().ljust(1023) + b"\n")

    log = opened(tmp_path)
    log.add({"kind": "call", "call": "after"})
    log.close()

    assert [line["call"] for line in lines(tmp_path)] == ["c0", "after"]
    assert verify(tmp_path).is_whole


def test_notices_that_somebody_removes_are_written_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = opened(tmp_path)
    one, other = noted(log, "one"), noted(log, "other")
    assert one.write()
    assert other.write()
    (file,) = notices(tmp_path)
    file.unlink()
    log.keep_notices()
    log.calls_ended([(record(id="other"), other)])
    log.close()
    opened(tmp_path).close()

    assert sorted(outcomes(tmp_path)) == [("one", HOST_ENDED), ("other", "ok")]
    assert "written anew" in caplog.text


def test_a_file_that_cannot_be_locked_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("runner.observation.call_notices.locks.try_lock", lambda _: False)
        first = noted(log).write()
        left = notices(tmp_path)
    second = noted(log, "c2").write()
    opened(tmp_path).close()
    log.close()

    assert (first, left, second) == (False, [], True)
    assert outcomes(tmp_path) == []


def test_what_a_call_was_given_is_not_kept_while_its_record_waits(tmp_path: Path) -> None:
    class Given(dict[str, str]):
        """Arguments to which there can be a weak reference."""

    log = opened(tmp_path)
    given = Given(text=SECRET)
    said = {"call": "c1", "user": "alice", "method": "tools/call", "tool": "report"}
    one = NotedCall(log=log, said=said, arguments=given, began=0.0)
    assert one.write()
    gone = weakref.ref(given)
    del given
    gc.collect()

    assert gone() is None
    assert one.digest == log.digest({"text": SECRET})
    log.close()


def test_a_call_that_cannot_be_told_of_takes_no_other_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = opened(tmp_path)
    observers = Observers(audit=log)

    def unmade() -> CallRecord:
        raise ValueError("there is no record")

    async def end() -> None:
        ways: dict[str, Callable[[], CallRecord]] = {
            "c1": partial(record, id="c1"),
            "c2": unmade,
            "c3": partial(record, id="c3"),
        }
        for call, made in ways.items():
            observers.call_ended(LINE, made, noted=noted(log, call))
        observers.tell()

    asyncio.run(end())
    log.close()
    opened(tmp_path).close()

    assert outcomes(tmp_path) == [("c1", "ok"), ("c3", "ok"), ("c2", HOST_ENDED)]
    assert "could not be told of" in caplog.text


def test_observers_hear_of_calls_in_each_loop(tmp_path: Path) -> None:
    log = opened(tmp_path)
    observers = Observers(audit=log)

    async def leave() -> None:
        observers.call_ended(LINE, partial(record, id="c1"), noted=noted(log, "c1"))

    asyncio.run(leave())

    async def hear() -> None:
        observers.call_ended(LINE, partial(record, id="c2"), noted=noted(log, "c2"))
        assert await becomes(lambda: len(lines(tmp_path)) == 2)

    asyncio.run(hear())
    log.close()


def test_what_is_told_of_many_calls_has_the_id_of_none(tmp_path: Path) -> None:
    log = opened(tmp_path)
    said: list[str | None] = []

    class Heard:
        """Hears of calls in the place of the metrics."""

        def call_ended(self, _: CallRecord) -> None:
            written = logging.makeLogRecord({})
            logging_setup._add_call_id(written)
            said.append(written.__dict__["call_id"])

    observers = Observers(audit=log, metrics=Heard())  # type: ignore[arg-type]

    async def end() -> None:
        with CallScope("c1"):
            observers.call_ended(LINE, partial(record, id="c1"), noted=noted(log, "c1"))
        assert await becomes(lambda: len(said) == 1)

    asyncio.run(end())
    log.close()

    assert said == [None]


def test_a_log_that_is_closed_takes_no_notice(tmp_path: Path) -> None:
    log = opened(tmp_path)
    late = noted(log)
    log.close()

    assert not late.write()
    assert not notices(tmp_path)


def test_a_call_that_is_cancelled_while_its_failure_is_worded_is_recorded(tmp_path: Path) -> None:
    log = opened(tmp_path)

    class Files:
        """My Files of somebody whose store does not answer."""

        async def nearest(self, _name: str) -> list[str]:
            asked.set()
            await asyncio.sleep(60)
            return []

    asked = asyncio.Event()
    service = SimpleNamespace(
        observers=Observers(audit=log), files=lambda *_, **__: Files(), tier=Tier.PROCESS
    )
    request = _request()

    async def act() -> Any:
        raise CallError(Code.E_FILE_NOT_FOUND, "there is none", details={"name": "x"})

    async def cancelled() -> None:
        called = observed(service, request)
        ending = conclude(service, called, act, spec=None, publish=lambda _: None, through=LookupError)
        task = asyncio.create_task(ending)
        await asked.wait()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        service.observers.tell()

    asyncio.run(cancelled())
    log.close()

    assert [outcome for _, outcome in outcomes(tmp_path)] == ["E_CANCELLED"]
    assert not notices(tmp_path)


def _request() -> Request:
    return Request(
        user=User("alice"),
        method="tools/call",
        params={"name": "report", "arguments": {"filename": "x"}},
        facts=RequestFacts(request_id=1, protocol=LATEST_PROTOCOL, session_id="s", transport="stdio"),
        client=Nobody(),
        inline_max_bytes=0,
    )
