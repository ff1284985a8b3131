"""Rules of every store: access by scope, whole content, names, and removal."""

import hashlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from store_world import ALICE, BOB, NOBODY, Clock, content_of, keep, observe

from runner.errors import CallError, Code
from runner.store.local.blobs import LocalBlobs
from runner.store.protocol import ArtifactStore, Origin, Put, Record, Retention, Scope
from runner.store.retention import Budgets, Cleanup, Quota, RetentionRules
from runner.store.store import BlobStore

pytestmark = pytest.mark.anyio

Make = Callable[..., ArtifactStore]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["local", "memory"])
def make(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Make:
    def make_one(files: Quota | None = None, **budgets: Any) -> ArtifactStore:
        rules = RetentionRules(files=files or Quota(), observations=Budgets(**budgets))
        if request.param == "memory":
            return BlobStore(rules=rules, clock=clock)
        return BlobStore(LocalBlobs(tmp_path / "store"), rules, clock=clock)

    return make_one


@pytest.fixture
def store(make: Make) -> ArtifactStore:
    return make()


async def test_a_file_is_found_with_all_that_was_said_of_it(store: ArtifactStore, clock: Clock) -> None:
    """Source: S4-62 and S4-73."""
    digest = hashlib.sha256(b"a,b\n").hexdigest()
    scope = Scope(user_id="alice", trace_id="t")
    about = Put(
        name="../data.csv",
        origin=Origin.DEFERRED,
        source={"tool": "t"},
        facts={"rows": 1},
        reason="draft",
        expires_at=clock.now + timedelta(hours=1),
    )

    record = await store.put_bytes(b"a,b\n", about, scope=scope)

    assert record == Record(
        id=f"art_{digest[:12]}",
        name="data.csv",
        mime="text/csv",
        size=4,
        sha256=digest,
        scope=scope,
        metadata=replace(about, name="data.csv"),
        created=clock.now,
        expires_at=clock.now + timedelta(hours=1),
    )
    assert await store.find("data.csv", scope=ALICE) == record
    assert await store.stat(record.id, scope=ALICE) == record
    assert await store.list(scope=ALICE) == [record]
    assert await content_of(store, record) == b"a,b\n"


async def test_a_model_sees_a_small_reference(store: ArtifactStore) -> None:
    """Source: S4-4, S4-73 and S4-74."""
    plain = await observe(store, b"x")
    named = await observe(store, b"y", name="p.png", namespace="my.tool", source={"a": 1})

    nothing: dict[str, Any] = {"mime_type": None, "filename": None, "source": {}, "size_bytes": 1}
    assert plain.ref.model_dump() == {**nothing, "id": "art_2d711642b726", "sha256": plain.sha256}
    assert named.id == f"my_tool_{named.sha256[:12]}"
    assert (named.ref.mime_type, named.ref.filename, named.ref.source) == ("image/png", "p.png", {"a": 1})


async def test_text_is_kept_as_utf8(store: ArtifactStore) -> None:
    record = await store.put_text("grün", Put(name="a.csv"), scope=ALICE)

    assert (record.mime, record.size) == ("text/plain", 5)
    assert await content_of(store, record) == "grün".encode()


async def test_file_is_read_from_its_start_at_any_descriptor_offset(
    store: ArtifactStore, tmp_path: Path
) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "big").write_bytes(content)
    fd = os.open(tmp_path / "big", os.O_RDONLY)
    os.lseek(fd, 1000, os.SEEK_SET)

    by_fd = await store.put_file(fd, Put(name="big"), scope=ALICE)
    by_path = await store.put_file(tmp_path / "big", Put(name="big"), scope=ALICE)

    assert os.lseek(fd, 0, os.SEEK_CUR) == 1000
    os.close(fd)
    assert by_path.id == by_fd.id
    assert await content_of(store, by_fd) == content


@pytest.mark.parametrize("kind", ["fifo", "folder", "missing"])
async def test_what_is_no_regular_file_is_refused_at_once(
    store: ArtifactStore, tmp_path: Path, kind: str
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()

    with pytest.raises(OSError, match=r"not a regular file|No such file"):
        await store.put_file(tmp_path / kind, Put(name="x"), scope=ALICE)

    assert await store.list(scope=ALICE) == []


async def test_a_range_is_cut_to_what_there_is(store: ArtifactStore) -> None:
    record = await keep(store, b"0123456789", "a.txt")

    spans: tuple[dict[str, Any], ...] = (
        {"offset": 3, "length": 4},
        {"offset": 8, "length": 9},
        {"offset": 20},
        {"length": 0},
    )
    parts = [await content_of(store, record, **span) for span in spans]

    assert parts == [b"3456", b"89", b"", b""]


async def test_bytes_are_copied_to_an_open_file(store: ArtifactStore) -> None:
    content = os.urandom(2_500_000)
    record = await keep(store, content, "a.bin")

    with tempfile.TemporaryFile() as whole, tempfile.TemporaryFile() as part:
        async with store.open(record, scope=ALICE) as opened:
            await opened.copy_to(whole.fileno())
        async with store.open(record, scope=ALICE, offset=9, length=7) as opened:
            await opened.copy_to(part.fileno())
        copies = [os.pread(file.fileno(), 3_000_000, 0) for file in (whole, part)]

    assert copies == [content, content[9:16]]


# Names.


async def test_the_same_file_put_again_is_the_same_file(store: ArtifactStore, clock: Clock) -> None:
    first, second = await keep(store, b"one", "a.csv"), await keep(store, b"two", "a.csv")
    clock.advance(5)

    again = [await keep(store, *pair) for pair in ((b"one", "a.csv"), (b"two", "a.csv"), (b"two", "a_2.csv"))]

    assert [record.name for record in (first, second)] == ["a.csv", "a_2.csv"]
    assert [record.name for record in again] == ["a.csv", "a_2.csv", "a_2.csv"]
    assert {record.created for record in again} == {clock.now}
    assert len(await store.list(scope=ALICE)) == 2


async def test_one_content_under_two_names_is_one_id_and_two_files(store: ArtifactStore) -> None:
    one, other = await keep(store, b"same", "a.txt"), await keep(store, b"same", "b.txt")

    assert one.id == other.id
    assert await store.stat(one.id, scope=ALICE) == other
    assert await store.delete(one.id, scope=ALICE, name="b.txt")
    assert [record.name for record in await store.list(scope=ALICE)] == ["a.txt"]
    assert await content_of(store, one) == b"same"
    assert not await store.delete(one.id, scope=ALICE, name="b.txt")
    assert await store.delete(one.id, scope=ALICE)
    assert await store.list(scope=ALICE) == []


async def test_content_whose_first_digits_clash_has_an_id_of_its_own(store: ArtifactStore) -> None:
    # Found by trying: their SHA-256 digests begin with the same twelve hex digits.
    contents = (b"c6007198", b"c8086181")
    one, other = [await keep(store, content, f"{content.decode()}.txt") for content in contents]

    assert one.sha256[:12] == other.sha256[:12]
    assert (len(one.id), len(other.id)) == (16, 20)
    assert await content_of(store, one) == contents[0]
    assert (await keep(store, contents[1], "again.txt")).id == other.id


@pytest.mark.parametrize("name", ["", ".", "..", "/", "\ud800", "x" * 10_000, "art", "a/file", "'; DROP --"])
async def test_a_name_of_no_file_finds_nothing(store: ArtifactStore, name: str) -> None:
    record = await keep(store, b"x", "file")

    assert await store.find(name, scope=ALICE) is None
    assert await store.stat(name, scope=ALICE) is None
    assert not await store.delete(record.id, scope=ALICE, name=name)
    assert not await store.delete(name, scope=ALICE)
    assert [found.name for found in await store.list(scope=ALICE)] == ["file"]


# Scopes.


async def test_nobody_sees_touches_or_reads_what_is_another_scopes(store: ArtifactStore) -> None:
    """Source: S4-105."""
    scope = Scope(tenant_id="t", user_id="alice", session_id="s")
    record = await keep(store, b"secret", "plan.txt", scope)
    others = [
        NOBODY,
        ALICE,
        Scope(trace_id="t"),
        replace(scope, user_id="bob"),
        replace(scope, tenant_id="u"),
        replace(scope, session_id="r"),
        replace(scope, session_id=None),
        replace(scope, user_id="alice\0"),
    ]

    for other in others:
        assert await store.find("plan.txt", scope=other) is None
        assert await store.stat(record.id, scope=other) is None
        assert list(await store.list(scope=other)) == []
        assert not await store.delete(record.id, scope=other)
        with pytest.raises(CallError) as raised:
            await content_of(store, record, other)
        assert raised.value.code is Code.E_FILE_NOT_FOUND
    assert await content_of(store, record, replace(scope, trace_id="any")) == b"secret"


async def test_who_names_more_than_the_artifact_may_have_it(store: ArtifactStore) -> None:
    record = await keep(store, b"x", "a.txt")
    caller = Scope(tenant_id="t", user_id="alice", session_id="s")

    assert await store.find("a.txt", scope=caller) == record
    assert await content_of(store, record, caller) == b"x"
    assert await store.delete(record.id, scope=caller)


async def test_two_scopes_share_no_entry_and_no_name(store: ArtifactStore) -> None:
    mine = await keep(store, b"same", "alice-secret.txt", ALICE)
    theirs = await keep(store, b"same", "bob.txt", BOB)

    assert (mine.id, mine.name, theirs.name) == (theirs.id, "alice-secret.txt", "bob.txt")
    assert await store.delete(mine.id, scope=ALICE)
    assert await content_of(store, theirs) == b"same"


async def test_a_session_gives_no_name_twice_to_what_it_sees(store: ArtifactStore) -> None:
    session = Scope(user_id="alice", session_id="s")
    await keep(store, b"kept", "a.txt", ALICE)

    own = await keep(store, b"own", "a.txt", session)
    other = await keep(store, b"other", "b.txt", replace(session, session_id="r"))
    again = await keep(store, b"another", "b.txt", session)

    assert (own.name, other.name, again.name) == ("a_2.txt", "b.txt", "b.txt")
    assert [record.name for record in await store.list(scope=session)] == ["a.txt", "a_2.txt", "b.txt"]


# Observations.


async def test_repeated_observation_is_one_entry_with_a_new_lifetime(
    store: ArtifactStore, clock: Clock
) -> None:
    first = await observe(store, b"x", name="a.png")
    clock.advance(3000)
    second = await observe(store, b"x", name="b.png")
    elsewhere = await observe(store, b"x", namespace="other")
    clock.advance(3000)

    assert first.id == second.id != elsewhere.id
    assert [record.name for record in await store.list(scope=NOBODY)] == ["b.png", None]


@pytest.mark.parametrize(("seconds", "there"), [(3599, True), (3600, True), (3601, False)])
async def test_an_observation_ends_with_its_lifetime(
    store: ArtifactStore, clock: Clock, seconds: float, there: bool
) -> None:
    record = await observe(store, b"x")
    file = await keep(store, b"x", "file.txt")
    clock.advance(seconds)

    assert (await store.stat(record.id, scope=NOBODY) is not None) == there
    swept = [removal.what for removal in await store.sweep()]
    assert swept == ([] if there else [record.id])
    assert await store.find("file.txt", scope=ALICE) == file


async def test_a_lifetime_of_zero_is_for_ever(make: Make, clock: Clock) -> None:
    store = make(ttl_seconds=0)
    record = await observe(store, b"x")
    clock.advance(1e9)

    assert await store.stat(record.id, scope=NOBODY) == record


@pytest.mark.parametrize(
    ("cleanup", "left"), [(Cleanup.LRU, [b"1", b"3", b"4"]), (Cleanup.FIFO, [b"2", b"3", b"4"])]
)
async def test_where_a_session_is_full_the_strategy_says_who_goes(
    make: Make, cleanup: Cleanup, left: list[bytes]
) -> None:
    store = make(max_artifacts_per_session=3, cleanup_strategy=cleanup)
    records = [await observe(store, content) for content in (b"1", b"2", b"3")]
    await content_of(store, records[0])

    await observe(store, b"4")

    contents = [await content_of(store, record) for record in await store.list(scope=NOBODY)]
    assert sorted(contents) == left


async def test_cleanup_none_refuses_new_and_renews_old_observations(
    make: Make,
) -> None:
    store = make(max_artifacts_per_session=1, cleanup_strategy=Cleanup.NONE)
    await observe(store, b"1")

    with pytest.raises(CallError, match="limit") as raised:
        await observe(store, b"2")

    assert raised.value.code is Code.E_QUOTA
    await observe(store, b"1")
    assert len(await store.list(scope=NOBODY)) == 1


async def test_names_of_one_content_count_against_number_of_files(make: Make) -> None:
    store = make(Quota(max_user_files=2))
    first, _ = [await keep(store, b"", name) for name in ("a", "b")]

    with pytest.raises(CallError, match="has 2 files") as raised:
        await keep(store, b"", "c")

    assert raised.value.code is Code.E_QUOTA
    assert (await keep(store, b"", "a")).id == first.id
    assert await store.delete(first.id, scope=ALICE, name="a")
    assert (await keep(store, b"", "c")).name == "c"


async def test_removal_by_name_checks_no_other_file(clock: Clock) -> None:
    checked = 0

    def counting() -> datetime:
        nonlocal checked
        checked += 1
        return clock()

    store = BlobStore(clock=counting)
    records = [await keep(store, b"x", f"{number}") for number in range(30)]
    checked = 0

    assert all([await store.delete(each.id, scope=ALICE, name=each.name) for each in records])
    assert checked <= 4 * len(records)


@pytest.mark.parametrize(
    ("budget", "trace"), [("max_artifact_bytes", None), ("max_session_bytes", None), ("max_trace_bytes", "t")]
)
async def test_what_no_cleanup_could_make_room_for_is_refused(
    make: Make, budget: str, trace: str | None
) -> None:
    store = make(**{budget: 10})
    scope = Scope(session_id="s", trace_id=trace)
    await observe(store, b"x" * 10, scope)

    with pytest.raises(CallError, match="limit") as raised:
        await observe(store, b"y" * 11, scope)

    assert raised.value.code is Code.E_QUOTA
    assert len(await store.list(scope=scope)) == 1


async def test_a_full_trace_costs_only_its_own_entries(make: Make) -> None:
    store = make(max_artifacts_per_trace=1)
    one, two = Scope(session_id="s", trace_id="1"), Scope(session_id="s", trace_id="2")

    for number in range(3):
        await observe(store, b"%d" % number, one)
    await observe(store, b"x", two)

    contents = [await content_of(store, record) for record in await store.list(scope=one)]
    assert sorted(contents) == [b"2", b"x"]


async def test_a_full_session_costs_no_other_session_and_no_file(make: Make) -> None:
    store = make(max_session_bytes=10)
    one, two = Scope(user_id="alice", session_id="1"), Scope(user_id="alice", session_id="2")
    other = await observe(store, b"a" * 9, two)
    file = await keep(store, b"b" * 9, "f.txt", one)

    await observe(store, b"c" * 9, one)
    await observe(store, b"d" * 9, one)

    assert await content_of(store, other) == b"a" * 9
    assert await content_of(store, file) == b"b" * 9
    assert len(await store.list(scope=one)) == 2


# Files.


async def test_files_above_quota_are_refused_and_none_is_removed(make: Make) -> None:
    store = make(files=Quota(max_file_bytes=10, max_user_bytes=15))
    first = await keep(store, b"a" * 10, "a.txt")

    with pytest.raises(CallError, match="limit") as full:
        await keep(store, b"b" * 6, "b.txt")
    with pytest.raises(CallError, match="limit") as large:
        await keep(store, b"c" * 11, "c.txt", BOB)
    same = await keep(store, b"a" * 10, "again.txt")
    await keep(store, b"b" * 5, "b.txt")

    assert (full.value.code, large.value.code) == (Code.E_QUOTA, Code.E_FILE_TOO_LARGE)
    assert await content_of(store, first) == await content_of(store, same) == b"a" * 10
    assert await store.list(scope=BOB) == []


async def test_name_and_space_of_an_expired_file_are_free(make: Make, clock: Clock) -> None:
    store = make(files=Quota(max_user_bytes=10))
    end = clock.now + timedelta(hours=1)
    await keep(store, b"a" * 10, "a.txt", expires_at=end)
    clock.advance(3601)

    record = await keep(store, b"b" * 10, "a.txt")

    assert record.name == "a.txt"
    assert await content_of(store, record) == b"b" * 10


@pytest.mark.parametrize("first", ["upload", "deferral"])
async def test_what_was_once_put_for_good_stays_for_good(
    store: ArtifactStore, clock: Clock, first: str
) -> None:
    end = clock.now + timedelta(hours=1)
    options: list[dict[str, Any]] = [{}, {"origin": Origin.DEFERRED, "expires_at": end, "reason": "draft"}]
    for about in options if first == "upload" else reversed(options):
        record = await keep(store, b"x", "a.txt", **about)
    clock.advance(7200)

    assert await store.find("a.txt", scope=ALICE) == record
    assert (record.metadata.origin, record.metadata.reason) == (Origin.UPLOADED, None)


async def test_deferred_again_a_file_stays_until_the_later_word(store: ArtifactStore, clock: Clock) -> None:
    for hours in (5, 1):
        end = clock.now + timedelta(hours=hours)
        record = await keep(store, b"x", "a.txt", origin=Origin.DEFERRED, expires_at=end, reason="draft")

    assert record.expires_at == record.metadata.expires_at == clock.now + timedelta(hours=1)


async def test_each_removal_is_logged_with_its_reason_and_no_name(
    make: Make, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    store = make(max_artifacts_per_session=1, max_artifacts_per_trace=1)
    await keep(store, b"x", "secret-name.txt", expires_at=clock.now)
    for content in (b"1", b"2"):
        await observe(store, content, Scope(session_id="s", trace_id="t"))
    await observe(store, b"3", Scope(session_id="s", trace_id="u"))
    clock.advance(4000)
    await store.sweep()

    reasons = [
        vars(record)["reason"] for record in caplog.records if record.getMessage() == "artifact removed"
    ]
    assert reasons == ["trace budget", "session budget", "expired", "expired"]
    assert "secret-name" not in "".join(str(vars(record)) for record in caplog.records)


async def test_a_record_of_what_was_deleted_opens_nothing(store: ArtifactStore) -> None:
    record = await keep(store, b"x", "a.txt")
    assert await content_of(store, record) == b"x"
    await store.delete(record.id, scope=ALICE)

    with pytest.raises(CallError, match="no longer stored") as raised:
        await content_of(store, record)

    assert raised.value.code is Code.E_FILE_NOT_FOUND


async def test_retention_is_a_class_of_its_own_even_for_the_same_bytes(
    store: ArtifactStore, clock: Clock
) -> None:
    file, seen = await keep(store, b"x", "a.txt"), await observe(store, b"x", ALICE)
    clock.advance(4000)
    await store.sweep()

    assert file.id == seen.id
    assert await content_of(store, file) == b"x"
    assert [record.metadata.retention for record in await store.list(scope=ALICE)] == [Retention.FILES]
