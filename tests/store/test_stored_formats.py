"""What is written down about files is read by the releases before and after: names in it stay as they are.

Each text here was written by a release. One that does not read it loses its users' files from their lists.
"""

from datetime import UTC, datetime
from pathlib import Path

from runner.store.protocol import Put, Record, Scope
from runner.store.s3.entry import BucketEntry, read_entry, written
from runner.store.spool import Spool

RECORD = (
    '{"id":"art_0123456789ab","name":"a.csv","mime":"text/csv","size":3,'
    '"sha256":"0123456789ab0000000000000000000000000000000000000000000000000000",'
    '"scope":{"tenant_id":null,"user_id":"ada","session_id":null,"trace_id":"t"},'
    '"said":{"name":"a.csv","mime":null,"origin":"generated","retention":"files","namespace":"art",'
    '"source":{},"facts":{"rows":1},"reason":null,"expires_at":null},'
    '"created":"2026-11-28T12:00:00Z","expires_at":null,"pending":false,"key":"k/a"}'
)
ENTRY = f'{{"record":{RECORD},"token":"tok","put":1,"used":2}}'
NOTE = f'{{"record":{RECORD},"token":"tok","attempts":0,"due":"2026-11-28T12:00:00Z","deleted":null}}'


def record() -> Record:
    return Record(
        id="art_0123456789ab",
        name="a.csv",
        mime="text/csv",
        size=3,
        sha256="0123456789ab" + 52 * "0",
        scope=Scope(user_id="ada", trace_id="t"),
        said=Put(name="a.csv", facts={"rows": 1}),
        created=datetime(2026, 11, 28, 12, tzinfo=UTC),
        key="k/a",
    )


def test_an_entry_of_a_bucket_is_read_and_written_as_ever() -> None:
    entry = BucketEntry(record=record(), token="tok", put=1, used=2)

    assert read_entry(ENTRY.encode(), at="") == entry
    assert written(entry).decode() == ENTRY


def test_a_note_of_a_file_that_waits_for_its_store_is_read_as_ever(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    kept = spool.keep(b"abc", Put(name="b.csv"), scope=Scope(user_id="ada"), now=record().created)
    (bytes_of_kept,) = spool.folder.glob("*.bytes")
    bytes_of_kept.rename(spool.folder / "tok.bytes")
    next(spool.folder.glob("*.json")).rename(spool.folder / "tok.json")
    (spool.folder / "tok.json").write_text(NOTE)

    assert kept.name == "b.csv"
    assert [each.record for each in spool.all()] == [record()]
    assert spool.unsure() == []
