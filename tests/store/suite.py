"""Tests that every store must pass: derive from `StoreSuite` and add a fixture `make_store`.

class TestMine(StoreSuite):
    @pytest.fixture
    def make_store(self, tmp_path): return lambda rules, clock: MyStore(tmp_path, rules=rules, clock=clock)
"""

import asyncio
import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from runner.errors import CallError, Code
from runner.store.protocol import ArtifactStore, Origin, Put, Record, Retention, Scope
from runner.store.retention import Budgets, Cleanup, Quota, RetentionRules

__all__ = ["ALICE", "BOB", "Clock", "StoreSuite", "read"]

ALICE = Scope(user_id="alice")
BOB = Scope(user_id="bob")
NOTE = Put(retention=Retention.OBSERVATIONS, mime="text/plain")

MakeStore = Callable[[RetentionRules, "Clock"], ArtifactStore]


class Clock:
    """A clock that moves only when it is told to."""

    def __init__(self) -> None:
        self.time = datetime(2026, 11, 21, 23, 59, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


async def read(store: ArtifactStore, record: Record, scope: Scope = ALICE, **part: Any) -> bytes:
    """All bytes of a record, or a range."""
    async with store.open(record, scope=scope, **part) as content:
        return b"".join([chunk async for chunk in content])


class StoreSuite:
    """The promises. A store that keeps nothing durable still has to keep all of them."""

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def store(self, make_store: MakeStore, clock: Clock) -> ArtifactStore:
        return make_store(RetentionRules(), clock)

    async def test_what_was_put_is_found_by_name_by_id_and_in_the_list(
        self, store: ArtifactStore, clock: Clock
    ) -> None:
        about = Put(
            name="Übersicht 東京.csv",
            mime="text/csv",
            origin=Origin.UPLOADED,
            source={"tool": "päivä"},
            facts={"rows": 3, "columns": ["ä", "b"]},
        )

        record = await store.put_bytes(b"a,b\n1,2\n", about, scope=ALICE)

        digest = hashlib.sha256(b"a,b\n1,2\n").hexdigest()
        assert replace(record, key=None) == Record(
            id=f"art_{digest[:12]}",
            name="Übersicht 東京.csv",
            mime="text/csv",
            size=8,
            sha256=digest,
            scope=ALICE,
            metadata=about,
            created=clock(),
        )
        assert await store.find("Übersicht 東京.csv", scope=ALICE) == record
        assert await store.stat(record.id, scope=ALICE) == record
        assert list(await store.list(scope=ALICE)) == [record]
        assert await read(store, record) == b"a,b\n1,2\n"

    async def test_another_user_has_none_of_it(self, store: ArtifactStore) -> None:
        record = await store.put_bytes(b"secret", Put(name="s.txt"), scope=ALICE)

        assert await store.find("s.txt", scope=ALICE) == record
        assert await store.find("s.txt", scope=BOB) is None
        assert await store.stat(record.id, scope=BOB) is None
        assert list(await store.list(scope=BOB)) == []
        assert not await store.delete(record.id, scope=BOB)
        with pytest.raises(CallError) as refused:
            await read(store, record, BOB)
        assert refused.value.code is Code.E_FILE_NOT_FOUND
        assert await read(store, record) == b"secret"

    @pytest.mark.parametrize("caller", [Scope(), Scope(user_id="Alice"), Scope(tenant_id="alice")])
    async def test_a_caller_who_is_somebody_else_or_nobody_gets_nothing(
        self, store: ArtifactStore, caller: Scope
    ) -> None:
        record = await store.put_bytes(b"secret", Put(name="s.txt"), scope=ALICE)

        assert await store.find("s.txt", scope=ALICE) == record
        assert await store.find("s.txt", scope=caller) is None
        assert await store.stat(record.id, scope=caller) is None

    async def test_what_is_bound_to_a_session_is_for_that_session(self, store: ArtifactStore) -> None:
        first, second = replace(ALICE, session_id="one"), replace(ALICE, session_id="two/../one")

        record = await store.put_bytes(b"x", Put(name="s.txt"), scope=first)

        assert await store.find("s.txt", scope=first) == record
        assert await store.find("s.txt", scope=second) is None
        assert await store.find("s.txt", scope=ALICE) is None

    async def test_a_session_sees_the_files_of_its_user_too(self, store: ArtifactStore) -> None:
        record = await store.put_bytes(b"x", Put(name="s.txt"), scope=ALICE)

        session = replace(ALICE, session_id="one", trace_id="t1")
        assert await store.find("s.txt", scope=session) == record
        assert await read(store, record, session) == b"x"

    async def test_other_content_of_the_same_name_gets_a_number(self, store: ArtifactStore) -> None:
        names = [
            (await store.put_bytes(content, Put(name="r.tar.gz"), scope=ALICE)).name
            for content in (b"1", b"2", b"3")
        ]

        assert names == ["r.tar.gz", "r_2.tar.gz", "r_3.tar.gz"]
        assert [record.name for record in await store.list(scope=ALICE)] == sorted(map(str, names))

    async def test_the_same_file_again_is_the_same_artifact(self, store: ArtifactStore, clock: Clock) -> None:
        first = await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
        clock.advance(60)

        again = await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)

        assert (again.id, again.name, again.created) == (first.id, "a.txt", clock())
        assert list(await store.list(scope=ALICE)) == [again]

    async def test_content_with_two_names_is_found_by_its_id_as_put_last(
        self, store: ArtifactStore, clock: Clock
    ) -> None:
        await store.put_bytes(b"x", Put(name="b.txt"), scope=ALICE)
        clock.advance(1)
        last = await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)

        assert await store.stat(last.id, scope=ALICE) == last
        assert await store.delete(last.id, scope=ALICE, name="a.txt")
        assert [record.name for record in await store.list(scope=ALICE)] == ["b.txt"]

    async def test_deleting_leaves_nothing_and_the_name_is_free_again(self, store: ArtifactStore) -> None:
        record = await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)

        assert await store.delete(record.id, scope=ALICE)

        assert not await store.delete(record.id, scope=ALICE)
        assert await store.find("a.txt", scope=ALICE) is None
        with pytest.raises(CallError) as refused:
            await read(store, record)
        assert refused.value.code is Code.E_FILE_NOT_FOUND
        assert (await store.put_bytes(b"y", Put(name="a.txt"), scope=ALICE)).name == "a.txt"

    async def test_a_name_is_made_safe(self, store: ArtifactStore) -> None:
        record = await store.put_bytes(b"x", Put(name="../../etc/\u202epasswd"), scope=ALICE)

        assert record.name == "passwd"
        assert await store.find("../../etc/\u202epasswd", scope=ALICE) is None

    @pytest.mark.parametrize(
        "name", ["a" * 251 + ".txt", "東" * 80 + ".csv", "100% & +=?#'\"<ok>.txt", "a b.c"]
    )
    async def test_a_name_of_any_kind_finds_its_file(self, store: ArtifactStore, name: str) -> None:
        record = await store.put_bytes(name.encode(), Put(name=name), scope=ALICE)

        assert record.name == name
        assert await store.find(name, scope=ALICE) == record
        assert await store.stat(record.id, scope=ALICE) == record
        assert await read(store, record) == name.encode()

    async def test_names_that_begin_alike_are_told_apart(self, store: ArtifactStore) -> None:
        await store.put_bytes(b"1", Put(name="ab"), scope=ALICE)

        assert await store.find("a", scope=ALICE) is None
        assert (await store.put_bytes(b"2", Put(name="a"), scope=ALICE)).name == "a"

    @pytest.mark.parametrize("id_", ["", "art_", "art_0", "../../x", "art_%", "art_\0", "é", "*"])
    async def test_an_id_that_nobody_has_finds_nothing(self, store: ArtifactStore, id_: str) -> None:
        await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)

        assert await store.stat(id_, scope=ALICE) is None
        assert not await store.delete(id_, scope=ALICE)

    @pytest.mark.parametrize(
        ("offset", "length", "expected"),
        [
            (0, None, b"0123456789"),
            (3, 4, b"3456"),
            (8, None, b"89"),
            (8, 50, b"89"),
            (10, 1, b""),
            (2, 0, b""),
        ],
    )
    async def test_a_range_is_those_bytes(
        self, store: ArtifactStore, offset: int, length: int | None, expected: bytes
    ) -> None:
        record = await store.put_bytes(b"0123456789", Put(name="a.txt"), scope=ALICE)

        async with store.open(record, scope=ALICE, offset=offset, length=length) as content:
            assert content.size == len(expected)
            assert b"".join([chunk async for chunk in content]) == expected

    async def test_an_empty_file_is_a_file(self, store: ArtifactStore) -> None:
        record = await store.put_bytes(b"", Put(name="empty"), scope=ALICE)

        assert record.size == 0
        assert await read(store, record) == b""

    async def test_a_large_file_comes_back_in_small_chunks(
        self, store: ArtifactStore, tmp_path: Path
    ) -> None:
        source = tmp_path / "large.bin"
        source.write_bytes(os.urandom(17 * 1024 * 1024 + 5))

        record = await store.put_file(source, Put(name="large.bin"), scope=ALICE)

        async with store.open(record, scope=ALICE) as content:
            chunks = [chunk async for chunk in content]
        assert max(map(len, chunks)) <= 1024 * 1024
        assert b"".join(chunks) == source.read_bytes()

    async def test_a_descriptor_is_read_from_its_start_and_stays_open(
        self, store: ArtifactStore, tmp_path: Path
    ) -> None:
        (tmp_path / "f").write_bytes(b"0123456789")
        with (tmp_path / "f").open("rb") as file:
            file.seek(5)

            record = await store.put_file(file.fileno(), Put(name="f"), scope=ALICE)

            assert file.read() == b"56789"
        assert await read(store, record) == b"0123456789"

    async def test_bytes_are_copied_to_a_file(self, store: ArtifactStore, tmp_path: Path) -> None:
        record = await store.put_bytes(b"0123456789" * 200_000, Put(name="f"), scope=ALICE)

        with (tmp_path / "copy").open("wb") as target:
            async with store.open(record, scope=ALICE) as content:
                await content.copy_to(target.fileno())

        assert (tmp_path / "copy").read_bytes() == b"0123456789" * 200_000

    async def test_what_is_no_regular_file_is_refused(self, store: ArtifactStore, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")

        for source in (tmp_path / "fifo", tmp_path, tmp_path / "missing"):
            with pytest.raises(OSError, match=r"."):
                await store.put_file(Path(source), Put(name="f"), scope=ALICE)
        assert list(await store.list(scope=ALICE)) == []

    async def test_text_is_kept_as_utf8(self, store: ArtifactStore) -> None:
        record = await store.put_text("päivää", Put(name="t.log"), scope=ALICE)

        assert record.mime == "text/plain"
        assert await read(store, record) == "päivää".encode()

    async def test_a_file_is_found_until_its_time_and_no_longer(
        self, store: ArtifactStore, clock: Clock
    ) -> None:
        until = clock() + timedelta(hours=72)
        record = await store.put_bytes(
            b"x", Put(name="d.txt", origin=Origin.DEFERRED, reason="large", expires_at=until), scope=ALICE
        )

        clock.time = until
        assert await store.find("d.txt", scope=ALICE) == record
        clock.advance(1)

        assert await store.find("d.txt", scope=ALICE) is None
        assert await store.stat(record.id, scope=ALICE) is None
        assert list(await store.list(scope=ALICE)) == []
        with pytest.raises(CallError) as refused:
            await read(store, record)
        assert refused.value.code is Code.E_FILE_NOT_FOUND

    async def test_permanent_file_stays_permanent_when_deferred_later(
        self, store: ArtifactStore, clock: Clock
    ) -> None:
        await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)

        ends = clock() + timedelta(hours=1)
        await store.put_bytes(b"x", Put(name="a.txt", expires_at=ends), scope=ALICE)
        clock.advance(7200)

        assert await store.find("a.txt", scope=ALICE) is not None

    async def test_an_observation_ends_by_its_lifetime_and_a_file_does_not(
        self, store: ArtifactStore, clock: Clock
    ) -> None:
        note = await store.put_text("seen", NOTE, scope=replace(ALICE, session_id="s"))
        await store.put_bytes(b"x", Put(name="a.txt"), scope=ALICE)

        clock.advance(3600)
        assert await store.stat(note.id, scope=replace(ALICE, session_id="s")) == note
        clock.advance(1)

        assert await store.stat(note.id, scope=replace(ALICE, session_id="s")) is None
        assert await store.find("a.txt", scope=ALICE) is not None

    async def test_observations_are_not_files(self, store: ArtifactStore) -> None:
        scope = replace(ALICE, session_id="s")
        note = await store.put_text("seen", replace(NOTE, name="n.txt", namespace="mcp.tool"), scope=scope)

        assert note.id.startswith("mcp_tool_")
        assert note.name == "n.txt"
        assert await store.find("n.txt", scope=scope) is None
        assert await read(store, note, scope) == b"seen"

    @pytest.mark.parametrize(("cleanup", "gone"), [(Cleanup.LRU, "2"), (Cleanup.FIFO, "1")])
    async def test_where_a_session_is_full_the_right_one_goes(
        self, make_store: MakeStore, clock: Clock, cleanup: Cleanup, gone: str
    ) -> None:
        store = make_store(
            RetentionRules(observations=Budgets(max_artifacts_per_session=2, cleanup_strategy=cleanup)), clock
        )
        scope = replace(ALICE, session_id="s")
        notes = {text: await store.put_text(text, NOTE, scope=scope) for text in ("1", "2")}
        await read(store, notes["1"], scope)

        await store.put_text("3", NOTE, scope=scope)

        left = [text for text, note in notes.items() if await store.stat(note.id, scope=scope)]
        assert left == [text for text in notes if text != gone]

    async def test_where_nothing_may_go_the_new_one_is_refused(
        self, make_store: MakeStore, clock: Clock
    ) -> None:
        store = make_store(
            RetentionRules(observations=Budgets(max_session_bytes=5, cleanup_strategy=Cleanup.NONE)), clock
        )
        scope = replace(ALICE, session_id="s")
        await store.put_text("12345", NOTE, scope=scope)

        with pytest.raises(CallError, match="limit") as refused:
            await store.put_text("6", NOTE, scope=scope)

        assert refused.value.code is Code.E_QUOTA

    async def test_a_quota_refuses_and_nothing_goes(self, make_store: MakeStore, clock: Clock) -> None:
        store = make_store(RetentionRules(files=Quota(max_file_bytes=8, max_user_bytes=10)), clock)
        await store.put_bytes(b"12345678", Put(name="a"), scope=ALICE)

        for content, code in ((b"123", Code.E_QUOTA), (b"123456789", Code.E_FILE_TOO_LARGE)):
            with pytest.raises(CallError, match="limit") as refused:
                await store.put_bytes(content, Put(name="b"), scope=ALICE)
            assert refused.value.code is code

        await store.put_bytes(b"12345678", Put(name="a"), scope=ALICE)
        await store.put_bytes(b"123", Put(name="b"), scope=BOB)
        assert [record.name for record in await store.list(scope=ALICE)] == ["a"]

    async def test_sizes_are_of_each_content_of_a_user_once(self, store: ArtifactStore) -> None:
        session = replace(ALICE, session_id="s")
        await store.put_bytes(b"1234", Put(name="a"), scope=ALICE)
        await store.put_bytes(b"1234", Put(name="b"), scope=session)
        await store.put_bytes(b"12", Put(name="c"), scope=session)
        await store.put_text("observed", NOTE, scope=ALICE)
        await store.put_bytes(b"of somebody else", Put(name="d"), scope=BOB)

        assert sorted(await store.sizes(scope=ALICE)) == [2, 4]

    async def test_a_sweep_removes_what_has_ended_and_nothing_else(
        self, store: ArtifactStore, clock: Clock
    ) -> None:
        until = clock() + timedelta(hours=1)
        await store.put_bytes(b"1", Put(name="stays"), scope=ALICE)
        await store.put_bytes(b"2", Put(name="goes", expires_at=until), scope=BOB)
        clock.advance(3601)

        removed = await store.sweep()

        assert [(one.name, one.size, one.reason.value) for one in removed] == [("goes", 1, "expired")]
        assert [record.name for record in await store.list(scope=ALICE)] == ["stays"]
        assert list(await store.sweep()) == []

    async def test_file_with_age_limit_ends_that_long_after_its_last_put(
        self, make_store: MakeStore, clock: Clock
    ) -> None:
        store = make_store(RetentionRules(files=Quota(max_age_s=3600)), clock)
        for name in ("old", "renewed"):
            await store.put_bytes(name.encode(), Put(name=name), scope=ALICE)
        clock.advance(3000)
        await store.put_bytes(b"renewed", Put(name="renewed"), scope=ALICE)
        before = [record.name for record in await store.list(scope=ALICE)]
        clock.advance(601)

        removed = await store.sweep()

        assert before == ["old", "renewed"]
        assert [(one.name, one.reason.value) for one in removed] == [("old", "expired")]
        assert [record.name for record in await store.list(scope=ALICE)] == ["renewed"]

    async def test_an_observation_does_not_hide_a_file_of_the_same_content(
        self, store: ArtifactStore
    ) -> None:
        file = await store.put_bytes(b"same", Put(name="a.txt"), scope=ALICE)
        await store.put_bytes(b"same", replace(NOTE, name="b.txt"), scope=ALICE)

        found = await store.stat(file.id, scope=ALICE)

        assert found is not None
        assert (found.name, found.metadata.retention) == ("a.txt", Retention.FILES)

    async def test_many_at_once_get_names_of_their_own(self, store: ArtifactStore) -> None:
        records = await asyncio.gather(
            *(store.put_bytes(b"%d" % n, Put(name="same.txt"), scope=ALICE) for n in range(8))
        )

        assert len({record.name for record in records}) == 8
        for number, record in enumerate(records):
            assert await read(store, record) == b"%d" % number
