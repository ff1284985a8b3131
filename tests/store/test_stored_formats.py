"""Texts of records that releases wrote. One that is not read any more loses files from their lists."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.store.entries import DamagedEntry, Entry
from runner.store.protocol import Put, Record, Scope

RECORD = (
    '{"id":"art_0123456789ab","name":"a.csv","mime":"text/csv","size":3,'
    '"sha256":"0123456789ab0000000000000000000000000000000000000000000000000000",'
    '"scope":{"tenant_id":null,"user_id":"ada","session_id":null,"trace_id":"t"},'
    '"said":{"name":"a.csv","mime":null,"origin":"generated","retention":"files","namespace":"art",'
    '"source":{},"facts":{"rows":1},"reason":null,"expires_at":null},'
    '"created":"2026-11-28T12:00:00Z","expires_at":null,"pending":false,"key":"k/a"}'
)
EARLIER = f'{{"record":{RECORD},"token":"tok","put":1,"used":2}}'
ENTRY = f'{{"record":{RECORD},"blob":"k/a","put":1}}'


def record() -> Record:
    return Record(
        id="art_0123456789ab",
        name="a.csv",
        mime="text/csv",
        size=3,
        sha256="0123456789ab" + 52 * "0",
        scope=Scope(user_id="ada", trace_id="t"),
        metadata=Put(name="a.csv", facts={"rows": 1}),
        created=datetime(2026, 11, 28, 12, tzinfo=UTC),
        key="k/a",
    )


def test_record_of_an_earlier_version_is_read() -> None:
    entry = Entry.read(EARLIER.encode())

    assert entry == Entry(record=record(), blob="k/a", put=1)


def test_record_is_read_and_written_unchanged() -> None:
    entry = Entry(record=record(), blob="k/a", put=1)

    assert Entry.read(ENTRY.encode()) == entry
    assert entry.written().decode() == ENTRY


ended = st.none() | st.datetimes(timezones=st.just(UTC))


@given(name=st.text(min_size=1), facts=st.dictionaries(st.text(), st.integers() | st.text()), end=ended)
def test_record_survives_writing_and_reading(
    name: str, facts: dict[str, int | str], end: datetime | None
) -> None:
    metadata = Put(name=name, facts=facts, expires_at=end)
    entry = Entry(record=replace(record(), name=name, metadata=metadata, expires_at=end), blob="k", put=7)

    assert Entry.read(entry.written()) == entry


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"record":{}}', ENTRY.replace("3,", '"3",', 1), ENTRY[:-9]]
)
def test_text_that_is_not_a_record_is_refused(content: str) -> None:
    with pytest.raises(DamagedEntry):
        Entry.read(content.encode())
