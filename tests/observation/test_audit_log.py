"""The audit log: consecutive lines from any writer, whatever happens to the disk."""

import errno
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from audit_records import SECRET, ended, lines
from disks import fill, mounted, small_disk, thin_image

from runner.errors import CallError, Code, UsageError
from runner.observation.audit_log import MOST_PENDING, AuditLog, AuditVerdict, verify
from runner.observation.call_record import OTHER, operation
from runner.observation.observers import Observers
from runner.system.state_files import open_regular

pytestmark = pytest.mark.needs_root

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "audit"


@pytest.fixture
def log(folder: Path) -> Iterator[AuditLog]:
    opened = AuditLog(folder, max_bytes=1 << 20)
    yield opened
    opened.close()


def test_call_record_has_user_tool_and_outcome(log: AuditLog, folder: Path) -> None:
    log.calls_ended([ended(log)])

    (line,) = lines(folder)
    assert line["user"] == "alice"
    assert line["tool"] == "report"
    assert line["outcome"] == "ok"
    assert line["inputs"] == [{"sha256": "ab" * 32, "bytes": 7}]
    assert line["denials"] == ["open by landlock"]
    assert line["arguments"] == log.digest({"text": SECRET})


def test_no_line_holds_what_a_call_was_given(log: AuditLog, folder: Path) -> None:
    log.calls_ended([ended(log)])

    assert "horse" not in (folder / "audit-000001.jsonl").read_text()
    assert log.digest({"text": SECRET}) != log.digest({"text": SECRET + "."})


def test_digest_is_useless_without_the_key(folder: Path, tmp_path: Path) -> None:
    one, other = (AuditLog(path, max_bytes=1 << 20) for path in (folder, tmp_path / "other"))

    assert one.digest("x") != other.digest("x")
    assert (folder / "key").stat().st_mode & 0o077 == 0
    one.close()
    other.close()


def test_logs_made_at_once_share_one_key(folder: Path) -> None:
    with ThreadPoolExecutor() as threads:
        logs = list(threads.map(AuditLog, [folder] * 8))
    digests = {log.digest("x") for log in logs}
    for log in logs:
        log.close()

    assert len(digests) == 1


def test_lines_follow_each_other_and_the_log_is_whole(log: AuditLog, folder: Path) -> None:
    for number in range(20):
        log.calls_ended([ended(log, id=f"c{number}")])

    verdict = verify(folder)
    assert verdict.is_whole
    assert (verdict.records, verdict.first, verdict.last) == (20, 1, 20)
    assert not verdict.notes


def test_log_that_grows_during_verification_is_whole(log: AuditLog, folder: Path) -> None:
    class Growing(type(folder)):  # type: ignore[misc]
        """A folder whose log grows before each access to one of its files."""

        def __truediv__(self, name: str) -> Path:
            log.calls_ended([ended(log, id=f"c{name}")])
            return folder / name

    log.calls_ended([ended(log)])

    verdict = verify(Growing(folder))

    assert (verdict.faults, verdict.is_whole) == ([], True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace('"ok"', '"no"', 1), "its hash does not fit"),
        (
            lambda text: "".join(text.splitlines(keepends=True)[:1] + text.splitlines(keepends=True)[2:]),
            "follow",
        ),
        (lambda text: "".join(reversed(text.splitlines(keepends=True))), "follow"),
        (lambda text: "".join(text.splitlines(keepends=True)[:-1]), "was written last"),
        (lambda text: text + "{}\n", "is not a record"),
    ],
    ids=["changed", "left out", "turned round", "cut off", "added"],
)
def test_tampering_is_named(log: AuditLog, folder: Path, change: object, message: str) -> None:
    for number in range(5):
        log.calls_ended([ended(log, id=f"c{number}")])
    assert verify(folder).is_whole
    path = folder / "audit-000001.jsonl"
    path.write_text(change(path.read_text()))  # type: ignore[operator]

    verdict = verify(folder)
    assert not verdict.is_whole
    assert message in " ".join(verdict.faults)


def test_rewritten_audit_log_lacks_the_hash_stored_elsewhere(folder: Path, tmp_path: Path) -> None:
    def written(place: Path) -> AuditVerdict:
        log = AuditLog(place, max_bytes=1 << 20)
        log.calls_ended([ended(log)])
        log.close()
        return verify(place)

    original, forged = written(folder), written(tmp_path / "forged")

    assert verify(folder, expected=original.hash).is_whole
    assert forged.is_whole
    assert not verify(tmp_path / "forged", expected=original.hash).is_whole


def test_full_audit_file_is_followed_by_next_in_the_chain(folder: Path) -> None:
    log = AuditLog(folder, max_bytes=1000)
    for number in range(12):
        log.calls_ended([ended(log, id=f"c{number}")])
    log.close()

    assert len(list(folder.glob("*.jsonl"))) > 2
    assert verify(folder).is_whole
    assert verify(folder).records == 12


def test_a_missing_file_in_between_is_a_fault(folder: Path) -> None:
    log = AuditLog(folder, max_bytes=1000)
    for number in range(12):
        log.calls_ended([ended(log, id=f"c{number}")])
    log.close()
    (folder / "audit-000002.jsonl").unlink()

    assert "a file is missing before audit-000003.jsonl" in verify(folder).faults


def test_files_that_were_swapped_or_doubled_are_faults(folder: Path) -> None:
    log = AuditLog(folder, max_bytes=1000)
    for number in range(12):
        log.calls_ended([ended(log, id=f"c{number}")])
    log.close()
    files = sorted(folder.glob("*.jsonl"))
    texts = [path.read_bytes() for path in files]
    assert verify(folder).is_whole
    found = {}

    files[1].write_bytes(texts[2])
    files[2].write_bytes(texts[1])
    found["swapped"] = verify(folder).is_whole
    files[1].write_bytes(texts[1])
    files[2].write_bytes(texts[1])
    found["one twice"] = verify(folder).is_whole
    files[2].write_bytes(texts[2])
    double = folder / f"audit-{len(files) + 1:06}.jsonl"
    double.write_bytes(texts[-1])
    found["the last again"] = verify(folder).is_whole
    double.unlink()
    files[-1].unlink()
    found["the last left out"] = verify(folder).is_whole
    files[-1].write_bytes(texts[-1])

    assert found == dict.fromkeys(("swapped", "one twice", "the last again", "the last left out"), False)
    assert verify(folder).is_whole


@pytest.mark.parametrize(
    "body",
    [b"no record", b'{"seq":"many","prev":"' + b"0" * 64 + b'"', b'{"kind":"call"', b"[" * 200_000],
    ids=["no JSON", "a number in words", "no number", "deep"],
)
def test_forged_line_with_valid_hash_is_reported_as_a_fault(log: AuditLog, folder: Path, body: bytes) -> None:
    log.calls_ended([ended(log)])
    end = f',"hash":"{hashlib.sha256(body).hexdigest()}"}}\n'.encode()
    (folder / "audit-000002.jsonl").write_bytes(body + end)

    assert "audit-000002.jsonl line 1 is not a record" in verify(folder).faults


def test_invented_words_of_a_worker_are_not_recorded() -> None:
    assert operation("sk-secret-of-somebody") == OTHER
    assert [operation(name) for name in ("open", "os.remove", "socket.connect")] == [
        "open",
        "os.remove",
        "socket.connect",
    ]


_REPLACED = """
import os
from sandbox.denials.patches import install
before = dict(vars(os))
install(None)
print(*(name for name, value in vars(os).items() if before.get(name) is not value))
"""


def test_every_operation_that_the_guard_names_is_known() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "sandbox/denials").glob("*.py"))
    named = set(re.findall(r'"((?:os|socket|sqlite3)\.[a-z_0-9]+)"', source))
    replaced = subprocess.run([sys.executable, "-c", _REPLACED], capture_output=True, text=True, check=True)
    named |= {f"os.{name}" for name in replaced.stdout.split()}
    programs = {"os.exec", "os.posix_spawn"}

    assert len(named) > 20
    assert {name for name in named - programs if operation(name) == OTHER} == set()


def test_two_logs_of_one_folder_write_one_chain(folder: Path) -> None:
    logs = [AuditLog(folder, max_bytes=2000) for _ in range(2)]
    for number in range(30):
        logs[number % 2].calls_ended([ended(logs[0], id=f"c{number}")])
    for log in logs:
        log.close()

    verdict = verify(folder)
    assert verdict.is_whole
    assert verdict.records == 30


_WRITER = """
import sys
from pathlib import Path
from runner.observation.audit_log import AuditLog
log = AuditLog(Path(sys.argv[1]), max_bytes=3000)
print("begun", flush=True)
while True:
    log.add({"kind": "call"})
"""


def test_processes_killed_while_writing_leave_audit_log_whole(folder: Path) -> None:
    for _ in range(3):
        writers = [
            subprocess.Popen([sys.executable, "-c", _WRITER, str(folder)], stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "begun\n"
        before = len(lines_that_are_whole(folder))
        while len(lines_that_are_whole(folder)) < before + 20:
            pass
        for writer in writers:
            writer.kill()
            writer.communicate()

    log = AuditLog(folder, max_bytes=3000)
    log.add({"kind": "call", "call": "last"})
    log.close()
    verdict = verify(folder)
    assert verdict.is_whole, verdict.faults
    assert verdict.records > 60


def lines_that_are_whole(folder: Path) -> list[bytes]:
    return [
        line
        for path in folder.glob("*.jsonl")
        for line in path.read_bytes().splitlines(keepends=True)
        if line.endswith(b"\n")
    ]


def test_partial_line_stays_and_next_file_continues(log: AuditLog, folder: Path) -> None:
    log.calls_ended([ended(log)])
    with (folder / "audit-000001.jsonl").open("ab") as file:
        file.write(b'{"seq":2,"tim')
    log.calls_ended([ended(log, id="c2")])

    verdict = verify(folder)
    assert verdict.is_whole
    assert verdict.records == 2
    assert "cut short" in verdict.notes[0]
    assert b'{"seq":2,"tim' in (folder / "audit-000001.jsonl").read_bytes()


@pytest.mark.parametrize("tail", [b"", b'{"seq":3,"tim', b"\0" * 200_000], ids=["whole", "torn", "zeros"])
def test_end_is_found_behind_lines_longer_than_a_block(folder: Path, tail: bytes) -> None:
    for number in range(2):
        log = AuditLog(folder)
        log.calls_ended([ended(log, id=f"c{number}", user="x" * 100_000)])
        log.close()
    (folder / "head.json").unlink()
    with (folder / "audit-000001.jsonl").open("ab") as file:
        file.write(tail)

    log = AuditLog(folder)
    log.calls_ended([ended(log, id="c2")])
    log.close()

    verdict = verify(folder)
    assert (verdict.records, verdict.last, verdict.faults) == (3, 3, [])


def test_long_tail_without_a_line_end_is_read_once(log: AuditLog, folder: Path) -> None:
    log.calls_ended([ended(log)])
    log.close()
    with (folder / "audit-000001.jsonl").open("ab") as file:
        file.write(b"\0" * (16 << 20))
    began = time.process_time()

    following = AuditLog(folder)
    following.calls_ended([ended(following)])
    following.close()

    assert time.process_time() - began < 1
    assert verify(folder).records == 2


def test_log_without_head_resumes_at_its_end(log: AuditLog, folder: Path) -> None:
    log.calls_ended([ended(log)])
    log.close()
    (folder / "head.json").unlink()
    assert "head.json is missing" in verify(folder).notes[0]
    again = AuditLog(folder, max_bytes=1 << 20)
    again.calls_ended([ended(log, id="c2")])
    again.close()

    assert verify(folder).is_whole
    assert verify(folder).records == 2


def test_moved_audit_files_are_followed_by_new_file_in_chain(folder: Path, tmp_path: Path) -> None:
    log = AuditLog(folder, max_bytes=1 << 20)
    log.calls_ended([ended(log)])
    (tmp_path / "archive").mkdir()
    (folder / "audit-000001.jsonl").rename(tmp_path / "archive" / "audit-000001.jsonl")
    log.calls_ended([ended(log, id="c2")])
    log.close()

    assert verify(folder).first == 2
    (tmp_path / "archive" / "audit-000001.jsonl").rename(folder / "audit-000001.jsonl")
    assert verify(folder).is_whole
    assert verify(folder).records == 2


def test_records_wait_on_full_disk_and_are_written_later(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", mib=1) as disk:
        log = AuditLog(disk / "audit", max_bytes=1 << 20)
        log.calls_ended([ended(log, id="before")])
        filler = fill(disk)
        for number in range(MOST_PENDING + 20):
            log.calls_ended([ended(log, id=f"w{number}")])
        assert log.fault is not None
        with pytest.raises(CallError) as refused:
            log.check()
        assert refused.value.code is Code.E_STORE
        assert "audit_dir" in refused.value.message
        waiting = log.pending
        filler.unlink()
        log.flush()

        assert waiting >= MOST_PENDING
        assert log.pending < waiting
        log.close()
        assert verify(disk / "audit").is_whole


def test_head_kept_where_next_file_cannot_be_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(folder, max_bytes=300)
    log.calls_ended([ended(log, id="fills the first file")])
    log.close()
    head = (folder / "head.json").read_bytes()

    def refuse_new(path: Path, flags: int) -> int:
        if path.name == "audit-000002.jsonl":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return open_regular(path, flags)

    monkeypatch.setattr("runner.observation.audit_log.open_regular", refuse_new)
    later = AuditLog(folder, max_bytes=300)
    later.calls_ended([ended(later, id="waits")])

    assert later.fault == "No space left on device"
    assert (folder / "head.json").read_bytes() == head


def test_file_left_empty_by_a_full_disk_forks_no_chain(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", mib=1) as disk:
        one, other = (AuditLog(disk / "audit", max_bytes=300) for _ in range(2))
        one.calls_ended([ended(one, id="fills the first file")])
        filler = fill(disk)
        one.calls_ended([ended(one, id="waits")])
        control = (one.fault, (disk / "audit" / "audit-000002.jsonl").stat().st_size)
        filler.unlink()

        other.calls_ended([ended(one, id="of another process")])
        one.flush()
        one.close()
        other.close()

        assert control == ("No space left on device", 0)
        assert [line["seq"] for line in lines(disk / "audit")] == [1, 2, 3]
        assert verify(disk / "audit").is_whole


def test_full_disk_holds_a_bounded_number_of_lines(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", mib=4) as disk:
        log = AuditLog(disk / "audit", max_bytes=1 << 22)
        log.add({"kind": "administration"})
        filler = fill(disk)
        log.calls_ended([ended(log)] * 4 * MOST_PENDING)
        # The disk may have room for a few.
        assert 3 * MOST_PENDING - 100 < log.pending <= 3 * MOST_PENDING
        filler.unlink()
        log.flush()
        log.close()

        lines = [
            json.loads(line) for line in (disk / "audit" / "audit-000001.jsonl").read_text().splitlines()
        ]
        assert len(lines) + lines[-1]["count"] == 1 + 4 * MOST_PENDING + 1
        assert lines[-1]["kind"] == "dropped"
        assert verify(disk / "audit").is_whole


def test_failed_sync_counts_lines_and_refuses_calls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with small_disk(tmp_path / "below", mib=16) as below:
        image = thin_image(below / "image")
        with mounted(image, below / "disk") as disk:
            log = AuditLog(disk / "audit", max_bytes=1 << 20)
            filler = fill(below)
            # More than one block, and no more than a file has without another block for their numbers.
            for number in range(40):
                log.calls_ended([ended(log, id=f"c{number}")])
            written = (log.fault, log.pending, len(lines(disk / "audit")))
            log.check()
            log.sync()
            failed, faults = log.fault, Observers(audit=log).faults()
            # Nothing has been written since, so nothing shows that the disk works again.
            log.sync()
            lasting = log.fault
            with pytest.raises(CallError) as refused:
                log.check()
            filler.unlink()
            log.calls_ended([ended(log, id="after")])
            log.sync()
            log.check()
            again = (log.fault, log.pending)
            log.close()
        with mounted(image, below / "disk") as disk:
            last = (disk / "audit" / "audit-000001.jsonl").read_bytes().splitlines()[-2:]

    # As far as anybody sees before it is asked, the disk has taken all of it.
    assert written == (None, 0, 40)
    assert failed is not None
    assert lasting == failed
    assert failed.startswith("its disk does not keep what was written (")
    assert faults == {"audit": f"the audit log cannot be written: {failed}"}
    assert refused.value.code is Code.E_STORE
    assert again == (None, 0)
    counted, after = map(json.loads, last)
    assert (counted["kind"], counted["count"]) == ("unsynced", 40)
    assert (after["seq"], after["call"]) == (42, "after")
    changes = [(entry.message, vars(entry)["act"]) for entry in caplog.records]
    assert changes == [("audit log failed", "sync"), ("audit log recovered", "sync")]


def test_records_lost_at_close_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with small_disk(tmp_path / "disk", mib=1) as disk:
        log = AuditLog(disk / "audit", max_bytes=1 << 20)
        fill(disk)
        log.calls_ended([ended(log)] * 20)
        waiting = log.pending
        log.close()

    lost = [entry for entry in caplog.records if entry.message == "audit log records lost"]
    assert waiting > 0
    assert [vars(entry)["count"] for entry in lost] == [waiting]


def test_record_without_room_for_its_note_is_written_once(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", mib=1) as disk:
        log = AuditLog(disk / "audit", max_bytes=1 << 20)
        filler = fill(disk)
        log.calls_ended([ended(log, id="waits")])
        control = (log.pending, log.fault)
        # One page, which the line takes.
        os.truncate(filler, filler.stat().st_size // 4096 * 4096 - 4096)

        log.flush()
        without_note = (disk / "audit" / "head.json").read_bytes()
        filler.unlink()
        log.calls_ended([ended(log, id="after")])
        log.close()

        assert control == (1, "No space left on device")
        assert without_note == b""
        assert [line["call"] for line in lines(disk / "audit")] == ["waits", "after"]
        assert verify(disk / "audit").is_whole


@pytest.mark.parametrize(
    "name",
    [
        'x"}\n{"seq":1,"kind":"call","user":"root"',
        "x\r\n\u2028\u2029{}\u202e\x1b[2J\0",
        "\ud800",
        "😀" * 5000,
        "../../audit-000009.jsonl",
    ],
    ids=["a line of its own", "control", "half a character", "long", "a path"],
)
def test_any_name_or_tool_text_is_data_in_one_audit_line(log: AuditLog, folder: Path, name: str) -> None:
    log.calls_ended([ended(log, user=name, tool=name)])
    log.calls_ended([ended(log)])

    first, second = lines(folder)
    assert (first["user"], first["tool"]) == (name, name)
    assert (first["seq"], second["seq"]) == (1, 2)
    raw = (folder / "audit-000001.jsonl").read_bytes()
    assert raw.isascii()
    assert raw.count(b"\n") == 2
    assert verify(folder).is_whole


def test_audit_file_cut_during_writing_is_detected(log: AuditLog, folder: Path) -> None:
    for number in range(3):
        log.calls_ended([ended(log, id=f"c{number}")])
    assert verify(folder).is_whole
    path = folder / "audit-000001.jsonl"

    os.truncate(path, path.stat().st_size // 2)
    log.calls_ended([ended(log, id="after")])

    assert json.loads((folder / "audit-000002.jsonl").read_text())["call"] == "after"
    assert any("does not follow" in fault for fault in verify(folder).faults)


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)

    with pytest.raises(UsageError, match="chmod 700"):
        AuditLog(folder, max_bytes=1 << 20)
    folder.chmod(0o700)
    AuditLog(folder, max_bytes=1 << 20).close()


def test_link_in_place_of_audit_file_is_not_followed(folder: Path, tmp_path: Path) -> None:
    folder.mkdir(mode=0o700)
    target = tmp_path / "target"
    target.write_text("theirs\n")
    os.symlink(target, folder / "audit-000001.jsonl")
    log = AuditLog(folder, max_bytes=1 << 20)
    log.calls_ended([ended(log)])
    log.close()

    assert target.read_text() == "theirs\n"


def test_verify_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no audit log"):
        verify(tmp_path)


def test_many_records_at_once_fill_file_after_file_of_one_chain(folder: Path) -> None:
    log = AuditLog(folder, max_bytes=2000)
    log.calls_ended([ended(log, id=f"c{number}") for number in range(150)])
    log.close()

    sizes = [path.stat().st_size for path in sorted(folder.glob("*.jsonl"))]
    assert len(sizes) > 10
    # A file is full with the line that reaches its size.
    assert max(sizes) < 3000
    assert [line["call"] for line in lines(folder)] == [f"c{number}" for number in range(150)]
    assert verify(folder).is_whole


def test_record_burst_fills_disk_and_the_rest_waits(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", mib=1) as disk:
        log = AuditLog(disk / "audit", max_bytes=1 << 20)
        filler = fill(disk)
        os.truncate(filler, filler.stat().st_size - 16384)
        log.calls_ended([ended(log, id=f"c{number}") for number in range(90)])
        taken, waiting = len(lines(disk / "audit")), log.pending
        filler.unlink()
        log.flush()
        log.close()

        assert 0 < taken < 90
        assert taken + waiting == 90
        assert [line["call"] for line in lines(disk / "audit")] == [f"c{number}" for number in range(90)]
        assert verify(disk / "audit").is_whole
