"""My Files: names as people write them, sessions that take their files along, deferred files."""

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import pytest
from other_processes import Start
from support import assert_reads_only_prolong

from runner.errors import CallError, Code
from runner.files.my_files import Deferral, Library, MyFiles, open_library
from runner.files.sessions import Session, Sessions, Unkept
from runner.settings.settings import Settings
from runner.store.blobs import utc_now
from runner.store.local.blobs import LocalBlobs
from runner.store.protocol import Origin, Put, Record, Retention, Scope
from runner.store.store import BlobStore

pytestmark = pytest.mark.anyio


def library(folder: Path, *, persist: bool = True) -> Library:
    return Library(
        store=BlobStore(LocalBlobs(folder / "store")), sessions=Sessions(folder / "sessions"), persist=persist
    )


async def put(files: MyFiles, name: str, content: bytes | None = None) -> str:
    return (await files.put(content or name.encode(), name=name, origin=Origin.UPLOADED)).shown


async def names(files: MyFiles) -> list[str]:
    return [record.shown for record in await files.all()]


def let_pass(folder: Path, seconds: float) -> None:
    """Let every session be idle for so much longer."""
    for note in (folder / "sessions").iterdir():
        then = note.stat().st_mtime - seconds
        os.utime(note, (then, then))


@pytest.mark.parametrize("name", ["👨\u200d👩", "👍.png", "日本語.csv", "---", "a/b/data.csv", "..\\x.txt"])
async def test_a_file_is_found_by_the_name_it_was_put_under(tmp_path: Path, name: str) -> None:
    files = library(tmp_path).of("alice")
    record = await files.put(b"x", name=name, origin=Origin.UPLOADED)

    by_safe_name = await files.find(record.shown)
    by_name = await files.find(name)

    assert by_safe_name == record
    # The safe form of dashes only is made up: nobody asked for that name.
    assert by_name == (None if name == "---" else record)


async def test_the_nearest_names_are_offered_best_first(tmp_path: Path) -> None:
    files = library(tmp_path).of("alice")
    for name in ("sales.csv", "sales_2024.csv", "sale.csv", "sales.tsv", "photo.png"):
        await put(files, name)

    assert await files.nearest("seles.csv") == ["sales.csv", "sale.csv", "sales.tsv"]
    assert await files.nearest("zzz") == []


async def test_no_user_finds_lists_or_removes_a_file_of_another(tmp_path: Path) -> None:
    shared = library(tmp_path)
    mine = shared.of("alice")
    record = await mine.put(b"secret", name="plan.txt", origin=Origin.UPLOADED)

    for other in ("bob", "Alice", "alice\0", "../alice"):
        theirs = shared.of(other)
        assert (await theirs.find("plan.txt"), await theirs.by_id(record.id)) == (None, None)
        assert (await theirs.all(), await theirs.nearest("plan.txt")) == ([], [])
        assert not await theirs.remove("plan.txt")
    assert await mine.remove("plan.txt")
    assert not await mine.remove("plan.txt")


async def test_facts_of_a_file_are_learnt_when_it_comes(tmp_path: Path) -> None:
    files = library(tmp_path).of("alice")
    (tmp_path / "t.csv").write_text("a\n1\n2\n")

    from_bytes = await files.put(b"a\n1\n", name="b.csv", origin=Origin.UPLOADED)
    from_path = await files.put(tmp_path / "t.csv", name="t.csv", origin=Origin.UPLOADED)

    assert [record.metadata.facts for record in (from_bytes, from_path)] == [{"rows": 1}, {"rows": 2}]


async def test_observations_are_no_files(tmp_path: Path) -> None:
    files = library(tmp_path).of("alice")
    await put(files, "a.txt")
    seen = Put(name="b.txt", retention=Retention.OBSERVATIONS)
    await files.library.store.put_bytes(b"seen", seen, scope=files.scope)

    assert await names(files) == ["a.txt"]
    assert await files.find("b.txt") is None


async def observed(files: MyFiles, content: bytes, name: str, namespace: str = "orders") -> Record:
    about = Put(name=name, retention=Retention.OBSERVATIONS, namespace=namespace)
    return await files.library.store.put_bytes(content, about, scope=files.scope)


async def referenced(files: MyFiles, reference: str) -> Record | None:
    return (await files.referenced([reference])).get(reference)


async def test_unknown_references_list_the_store_once(tmp_path: Path) -> None:
    class Counting(BlobStore):
        listings = 0

        async def list(self, *, scope: Scope) -> Sequence[Record]:
            self.listings += 1
            return await super().list(scope=scope)

    store = Counting()
    files = Library(store=store, sessions=Unkept()).of("alice")
    taken = await observed(files, b"taken", "a.json")

    found = await files.referenced([*map(str, range(20)), "a.json"])

    assert (found, store.listings) == ({"a.json": taken}, 1)


async def test_referenced_takes_every_form_of_a_reference(tmp_path: Path) -> None:
    files = library(tmp_path).of("alice")
    file = await files.put(b"kept", name="Bericht Q3.csv", origin=Origin.UPLOADED)
    taken = await observed(files, b"taken", "Übersicht 東京.json")

    for record in (file, taken):
        uri = f"artifact://{record.id}"
        assert record.name is not None
        encoded = quote(record.name)
        for form in (uri, uri.upper(), f" {uri}/", f"{uri}?offset=0&length=5", record.id, record.id.upper()):
            assert await referenced(files, form) == record, form
        for form in (record.name, encoded, f"artifact:{record.id}"):
            assert await referenced(files, form) == record, form
    for none in ("artifact://", "artifact://art_000000000000", "orders_000000000000", "out.csv", "%", ""):
        assert await referenced(files, none) is None, none


async def test_referenced_prefers_my_files_then_the_newest(tmp_path: Path) -> None:
    files = library(tmp_path).of("alice")
    await observed(files, b"first", "a.json")
    second = await observed(files, b"second", "a.json")

    assert await referenced(files, "a.json") == second
    record = await files.put(b"third", name="a.json", origin=Origin.UPLOADED)
    assert await referenced(files, "a.json") == record
    assert await referenced(files, second.id) == second


async def test_referenced_finds_nothing_of_others_or_removed(tmp_path: Path) -> None:
    shared = library(tmp_path)
    mine = shared.of("alice")
    file = await mine.put(b"kept", name="plan.txt", origin=Origin.UPLOADED)
    taken = await observed(mine, b"taken", "secret.json")
    forms = [form for r in (file, taken) for form in (r.id, f"artifact://{r.id}", r.shown)]

    assert all([await referenced(mine, form) for form in forms])
    for other in ("bob", "Alice", "../alice"):
        assert not any([await referenced(shared.of(other), form) for form in forms])
    for record in (file, taken):
        await shared.store.delete(record.id, scope=mine.scope)
    assert not any([await referenced(mine, form) for form in forms])


async def test_referenced_keeps_sessions_apart_without_persistence(tmp_path: Path) -> None:
    shared = library(tmp_path, persist=False)
    mine, other = shared.of("alice", "one"), shared.of("alice", "two")
    taken = await observed(mine, b"taken", "a.json")

    assert await referenced(mine, "a.json") == taken
    assert await referenced(other, "a.json") is None
    assert await referenced(other, f"artifact://{taken.id}") is None


async def test_a_deferred_file_is_used_by_name_until_it_expires(tmp_path: Path) -> None:
    """Source: S1-84 and S1-85."""
    files = library(tmp_path).of("alice")
    soon = Deferral(expires_at=utc_now() + timedelta(hours=72), reason="draft", next_actions=("edit",))
    past = Deferral(expires_at=utc_now() - timedelta(seconds=1))

    record = await files.put(b"x", name="d.docx", origin=Origin.DEFERRED, deferral=soon)
    await files.put(b"y", name="gone.docx", origin=Origin.DEFERRED, deferral=past)

    assert await files.find("d.docx") == record
    assert (record.metadata.reason, record.expires_at) == ("draft", soon.expires_at)
    assert record.ref.source == {"next_actions": ["edit"]}
    assert await files.find("gone.docx") is None
    assert await names(files) == ["d.docx"]


async def test_temporary_file_is_found_by_id_and_not_in_my_files(tmp_path: Path) -> None:
    files = library(tmp_path).of("alice")

    record = await files.put(b"x", name="t.txt", origin=Origin.GENERATED, temporary=True)

    assert await files.by_id(record.id) == record
    assert await files.find("t.txt") is None
    assert await names(files) == []
    assert record.expires_at is not None


@pytest.mark.parametrize(
    ("ttl_seconds", "lifetime"), [(None, timedelta(hours=1)), (90, timedelta(seconds=90)), (0, None)]
)
async def test_temporary_file_above_observation_budgets_lives_as_long(
    tmp_path: Path, ttl_seconds: int | None, lifetime: timedelta | None
) -> None:
    retention = {} if ttl_seconds is None else {"ttl_seconds": ttl_seconds}
    settings = Settings(
        state_dir=tmp_path / "state", store=f"file://{tmp_path}/store", output_guard={"retention": retention}
    )
    files = open_library(settings).of("alice")
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(51 * 1024 * 1024)

    record = await files.put(large, name="large.bin", origin=Origin.GENERATED, temporary=True)

    assert record.size == 51 * 1024 * 1024
    if lifetime is None:
        assert record.expires_at is None
    else:
        assert record.expires_at is not None
        assert timedelta() < record.expires_at - utc_now() <= lifetime
        assert record.expires_at - utc_now() > lifetime - timedelta(minutes=1)


# Sessions.


async def test_files_that_persist_belong_to_every_session_and_to_none(tmp_path: Path) -> None:
    shared = library(tmp_path)
    await put(shared.of("alice", "one"), "a.txt")

    assert await names(shared.of("alice", "two")) == await names(shared.of("alice")) == ["a.txt"]
    assert await shared.of("alice", "one").end_session() is None
    assert await names(shared.of("alice")) == ["a.txt"]


async def test_session_files_are_removed_with_their_session_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Source: S1-13 and S1-86."""
    caplog.set_level(logging.INFO)
    shared = library(tmp_path, persist=False)
    one, two, unnamed = shared.of("alice", "one"), shared.of("alice", "two"), shared.of("alice")
    bob = shared.of("bob", "one")
    for files in (one, two, unnamed, bob):
        await put(files, "a.txt")
    soon = Deferral(expires_at=utc_now() + timedelta(hours=72))
    await one.put(b"later", name="d.docx", origin=Origin.DEFERRED, deferral=soon)

    removed = await one.end_session()

    assert removed == ["a.txt", "d.docx"]
    assert [await names(files) for files in (one, two, unnamed, bob)] == [[], ["a.txt"], ["a.txt"], ["a.txt"]]
    reasons = [vars(record).get("reason") for record in caplog.records]
    assert reasons.count("session ended") == 2
    assert await one.end_session() is None


async def test_open_file_keeps_session_alive_and_restarts_idle_time(
    tmp_path: Path,
) -> None:
    files = library(tmp_path, persist=False).of("alice", "s")
    await put(files, "a.txt", b"content")
    record = await files.find("a.txt")
    assert record is not None
    let_pass(tmp_path, 20)

    async with files.open(record) as content:
        during = await files.end_session()
        read = b"".join([chunk async for chunk in content])
    soon = await files.end_session(10)
    let_pass(tmp_path, 20)
    later = await files.end_session(10)

    assert (during, read, soon, later) == (None, b"content", None, ["a.txt"])


async def test_sessions_of_a_name_end_for_users_with_files_in_them(tmp_path: Path) -> None:
    shared = library(tmp_path, persist=False)
    one, other, unnamed = shared.of("alice", "one"), shared.of("alice", "other"), shared.of("alice")
    for files in (one, other, unnamed):
        await put(files, "a.txt")

    await shared.end_sessions_named("one")

    assert [await names(files) for files in (one, other, unnamed)] == [[], ["a.txt"], ["a.txt"]]


async def test_a_session_that_is_used_does_not_end(tmp_path: Path) -> None:
    files = library(tmp_path, persist=False).of("alice", "s")
    await put(files, "a.txt")

    async with files.in_use():
        let_pass(tmp_path, 10_000)
        during = await files.end_session(), await files.library.end_idle_sessions(10)
    young = await files.library.end_idle_sessions(10)
    let_pass(tmp_path, 11)

    assert (during, young) == ((None, 0), 0)
    assert await names(files) == ["a.txt"]
    assert await files.library.end_idle_sessions(10) == 1
    assert await names(files) == []
    assert list((tmp_path / "sessions").iterdir()) == []


async def test_other_process_keeps_session_alive_until_killed(tmp_path: Path, start: Start) -> None:
    files = library(tmp_path, persist=False).of("alice", "s")
    await put(files, "a.txt")
    other = start(
        """
        import sys
        from pathlib import Path
        from runner.files.sessions import Session, Sessions, Unkept
        with Sessions(Path(sys.argv[1])).using(Session(user="alice", name="s")):
            print("used", flush=True)
            sys.stdin.readline()
        """,
        tmp_path / "sessions",
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "used\n"

    used = await files.end_session()
    other.kill()
    other.wait()

    assert used is None
    assert await files.end_session() == ["a.txt"]


async def test_session_files_end_although_the_setting_changed(tmp_path: Path) -> None:
    await put(library(tmp_path, persist=False).of("alice", "s"), "a.txt")
    let_pass(tmp_path, 100)
    now = library(tmp_path)
    await put(now.of("alice", "s"), "kept.txt")

    assert await now.end_idle_sessions(50) == 1
    assert await names(now.of("alice", "s")) == ["kept.txt"]


async def test_a_session_whose_files_cannot_be_removed_has_not_ended(tmp_path: Path) -> None:
    files = library(tmp_path, persist=False).of("alice", "s")
    await put(files, "a.txt")
    users = tmp_path / "store/users"
    users.rename(tmp_path / "away")
    users.write_text("not a folder")

    with pytest.raises(CallError) as raised:
        await files.end_session()
    users.unlink()
    (tmp_path / "away").rename(users)

    assert raised.value.code is Code.E_STORE
    assert await files.end_session() == ["a.txt"]


async def test_putting_while_a_session_ends_loses_no_file(tmp_path: Path) -> None:
    files = library(tmp_path, persist=False).of("alice", "s")

    async def end() -> list[str]:
        return [name for _ in range(20) for name in await files.end_session() or []]

    async def fill() -> list[str]:
        return [await put(files, f"{number}.txt") for number in range(40)]

    went, came = await asyncio.gather(end(), fill())

    assert sorted(went + await names(files)) == sorted(came)


@pytest.mark.parametrize("user", ["alice", '{"user": "bob", "session": ""}', "{", "Ünï"])
@pytest.mark.parametrize("persist", [True, False])
def test_who_holds_files_is_one_text_and_read_back_as_the_same(
    tmp_path: Path, user: str, persist: bool
) -> None:
    shared = library(tmp_path, persist=persist)
    files = shared.of(user, "s")

    again = shared.held_by(files.holder)

    assert again.user == user
    assert persist or again.scope == files.scope


def test_a_session_is_known_from_its_first_use_to_its_end(tmp_path: Path) -> None:
    sessions, session = Sessions(tmp_path / "s"), Session(user="alice", name="one")
    assert (list(sessions.known()), sessions.claim(session)) == ([], None)

    with sessions.using(session):
        assert sessions.claim(session) is None
    before = time.time()
    claim = sessions.claim(session)

    assert claim is not None
    assert list(sessions.known()) == [session]
    assert sessions.claim(session, idle_s=before + 1) is None
    claim.forget()
    claim.release()
    assert list(sessions.known()) == []


def test_a_read_begins_no_session_and_prolongs_one(tmp_path: Path) -> None:
    assert_reads_only_prolong(Sessions(tmp_path / "s"), Session(user="alice", name="one"))


async def test_the_scope_of_a_call_is_noted_on_what_it_puts(tmp_path: Path) -> None:
    persisting = replace(library(tmp_path).of("alice", "s"), trace="call")
    bound = replace(library(tmp_path / "b", persist=False).of("alice", "s"), trace="call")

    scopes = [
        (await files.put(b"x", name="a", origin=Origin.GENERATED)).scope for files in (persisting, bound)
    ]

    assert scopes == [
        Scope(user_id="alice", trace_id="call"),
        Scope(user_id="alice", session_id="session:s", trace_id="call"),
    ]
