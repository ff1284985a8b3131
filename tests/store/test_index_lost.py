"""A local store whose index is missing, damaged or an earlier one: no file is lost, and no byte goes away."""

import os
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from disks import fill, small_disk
from store_world import ALICE, BOB, Clock, content_of, keep, observe, run

from runner.errors import CallError, Code
from runner.store.local.examining import examine
from runner.store.local.journal import Journal
from runner.store.local.objects import Objects
from runner.store.local.reserve import Reserve
from runner.store.local.row import Bytes
from runner.store.local.store import LocalStore
from runner.store.protocol import ArtifactStore, Origin, Record, Scope

pytestmark = [pytest.mark.anyio, pytest.mark.needs_root]

SESSION = Scope(user_id="alice", session_id="s")
LONE = Scope(session_id="only a session")
SCOPES = (ALICE, BOB, SESSION, LONE)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> LocalStore:
    return LocalStore(tmp_path / "store", clock=clock)


async def fill_in(store: LocalStore, clock: Clock) -> None:
    """Have every kind of artifact in a store, and traces of some that went."""
    await keep(store, b"same", "a.txt", facts={"rows": 3}, source={"tags": ["x", "y"]})
    await keep(store, b"same", "b.txt")
    await keep(store, b"other", "a.txt", mime="text/x-own")
    end = clock.now + timedelta(hours=72)
    await keep(store, b"later", "later.csv", origin=Origin.DEFERRED, reason="not finished", expires_at=end)
    await keep(store, b"bob's", "a.txt", BOB)
    await keep(store, b"of a session", "s.txt", SESSION)
    await keep(store, b"of nobody", "n.txt", LONE)
    await keep(store, b"renewed", "again.txt")
    await keep(store, b"gone", "gone.txt")
    observed = await observe(store, b"observed" * 100, SESSION, mime="text/plain")
    clock.advance(60)
    await store.touch(observed.id, scope=SESSION)
    await keep(store, b"renewed", "again.txt")
    gone = await store.find("gone.txt", scope=ALICE)
    assert gone is not None
    assert await store.delete(gone.id, scope=ALICE)


async def all_of(store: ArtifactStore) -> dict[Scope, Sequence[Record]]:
    return {scope: await store.list(scope=scope) for scope in SCOPES}


async def read_all(store: LocalStore) -> dict[tuple[Scope, str, str | None], bytes]:
    found = [(scope, record) for scope, records in (await all_of(store)).items() for record in records]
    return {(scope, r.id, r.name): await content_of(store, r, scope) for scope, r in found}


async def make_long(store: LocalStore) -> None:
    """Make a journal so long that a sweep writes it anew."""
    for number in range(40):
        record = await keep(store, b"x" * (number + 1), "short lived.txt", source={"long": "x" * 10_000})
        await store.delete(record.id, scope=ALICE)


def objects(store: LocalStore) -> list[str]:
    return sorted(str(path.relative_to(store.root)) for path in store.root.glob("*/*/objects/*/*"))


def apart(store: LocalStore) -> list[Bytes]:
    return list(Objects(store.root).apart())


def index_of(store: LocalStore) -> Path:
    return store.root / "index.sqlite"


def removed(index: Path) -> None:
    for path in index.parent.glob("index.sqlite*"):
        path.unlink()


def only_the_log_left(index: Path) -> None:
    # Frames of another index, which must not be played into a new one.
    with closing(sqlite3.connect(index, isolation_level=None)) as connection:
        connection.execute("UPDATE artifacts SET name = 'forged ' || number")
        shutil.copy(f"{index}-wal", index.with_name("kept"))
    index.unlink()
    index.with_name("kept").rename(f"{index}-wal")


def empty(index: Path) -> None:
    removed(index)
    index.touch()


def no_database(index: Path) -> None:
    index.write_bytes(b"no database, " * 1000)


def torn(index: Path) -> None:
    size = index.stat().st_size
    with index.open("r+b") as file:
        for page in range(4096, size, 4096):
            file.seek(page)
            file.write(os.urandom(2048))


def cut(index: Path) -> None:
    os.truncate(index, index.stat().st_size // 2)


LOSSES = [removed, only_the_log_left, empty, no_database, torn, cut]


@pytest.mark.parametrize("first", ["list", "put", "sweep", "check"])
@pytest.mark.parametrize("lose", LOSSES)
async def test_whatever_becomes_of_the_index_every_artifact_is_found_as_it_was(
    store: LocalStore, clock: Clock, lose: Callable[[Path], None], first: str
) -> None:
    await fill_in(store, clock)
    before, contents, stored = await all_of(store), await read_all(store), objects(store)
    lose(index_of(store))

    if first == "put":
        new = await keep(store, b"new", "new.txt")
        await store.delete(new.id, scope=ALICE)
    elif first == "sweep":
        assert list(await store.sweep()) == []
    elif first == "check":
        await store.check()

    assert await read_all(store) == contents
    assert await all_of(store) == before
    assert list(await store.sweep()) == []
    assert (objects(store), apart(store)) == (stored, [])
    assert store.missing() == []


@pytest.mark.parametrize("lose", LOSSES)
async def test_without_index_and_journals_the_bytes_are_in_quarantine_and_come_back_with_either(
    store: LocalStore, clock: Clock, tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    # The control of the test above: it is the journals that the rows come from.
    await fill_in(store, clock)
    before, stored = await all_of(store), objects(store)
    shutil.copytree(store.root, tmp_path / "backup")
    lose(index_of(store))
    for path in store.root.glob("*/*/journal"):
        path.unlink()

    await store.sweep()
    nothing, kept = await all_of(store), apart(store)
    for path in (tmp_path / "backup").glob("*/*/journal"):
        path.rename(store.root / path.relative_to(tmp_path / "backup"))
    await store.sweep()

    assert nothing == {scope: [] for scope in SCOPES}
    assert len(kept) == len(stored)
    assert await all_of(store) == before
    assert (objects(store), apart(store)) == (stored, [])


async def test_an_earlier_index_reads_on_and_what_was_deleted_stays_deleted(
    store: LocalStore, clock: Clock, tmp_path: Path
) -> None:
    await fill_in(store, clock)
    shutil.copy(index_of(store), tmp_path / "backup")
    later = await keep(store, b"later on", "new.txt")
    renewed = await keep(store, b"same", "b.txt", facts={"rows": 7})
    for name in ("a.txt", "again.txt"):
        record = await store.find(name, scope=ALICE)
        assert record is not None
        await store.delete(record.id, scope=ALICE, name=name)
    before, stored = await all_of(store), objects(store)
    removed(index_of(store))
    shutil.copy(tmp_path / "backup", index_of(store))

    assert await store.find("new.txt", scope=ALICE) == later
    assert await store.find("b.txt", scope=ALICE) == renewed
    assert await all_of(store) == before
    assert list(await store.sweep()) == []
    assert (objects(store), apart(store), store.missing()) == (stored, [], [])


async def test_an_earlier_index_of_before_its_journal_was_written_anew_reads_all_of_it(
    store: LocalStore, clock: Clock, tmp_path: Path
) -> None:
    await fill_in(store, clock)
    shutil.copy(index_of(store), tmp_path / "backup")
    await make_long(store)
    size = Journal(store.root, "users/alice").path.stat().st_size
    await store.sweep()
    await keep(store, b"after", "after.txt")
    before = await all_of(store)
    removed(index_of(store))
    shutil.copy(tmp_path / "backup", index_of(store))

    assert await all_of(store) == before
    assert Journal(store.root, "users/alice").path.stat().st_size < size / 10


async def test_rows_whose_bytes_are_gone_are_reported_by_a_new_index_too(
    store: LocalStore, clock: Clock
) -> None:
    await fill_in(store, clock)
    lost = await store.find("later.csv", scope=ALICE)
    assert lost is not None
    Objects(store.root).delete("users/alice", lost.sha256)
    removed(index_of(store))

    assert [(missing.shown, missing.area) for missing in store.missing()] == [("later.csv", "users/alice")]
    await store.sweep()
    assert [missing.shown for missing in store.missing()] == ["later.csv"]


def of_version_2(store: LocalStore) -> None:
    """Make a store what version 2 of it was: without journals."""
    with closing(sqlite3.connect(index_of(store), isolation_level=None)) as connection:
        connection.execute("DROP TABLE journals")
        connection.execute("PRAGMA user_version = 2")
    for path in store.root.glob("*/*/journal"):
        path.unlink()


async def test_a_store_of_version_2_has_its_journals_after_a_sweep(store: LocalStore, clock: Clock) -> None:
    await fill_in(store, clock)
    before, stored = await all_of(store), objects(store)
    of_version_2(store)

    assert await all_of(store) == before
    assert list(store.root.glob("*/*/journal")) == []
    await store.sweep()
    removed(index_of(store))

    assert await all_of(store) == before
    await store.sweep()
    assert (objects(store), apart(store)) == (stored, [])


async def test_an_index_of_version_2_that_is_restored_learns_what_the_journals_say(
    store: LocalStore, clock: Clock, tmp_path: Path
) -> None:
    await fill_in(store, clock)
    whole = await all_of(store)
    shutil.copytree(store.root, tmp_path / "old")
    old = LocalStore(tmp_path / "old", clock=clock)
    of_version_2(old)
    gone = await store.find("a.txt", scope=ALICE)
    assert gone is not None
    await store.delete(gone.id, scope=ALICE, name="a.txt")
    new = await keep(store, b"new", "new.txt")
    removed(index_of(store))
    shutil.copy(index_of(old), index_of(store))

    names = [record.name for record in await store.list(scope=ALICE)]

    assert "a.txt" in [record.name for record in whole[ALICE]]
    assert "a.txt" not in names
    assert new.name in names


@pytest.mark.parametrize("damage", ["removed", "cut", "emptied", "an earlier one"])
async def test_a_lost_journal_is_written_anew_from_the_index(
    store: LocalStore, clock: Clock, tmp_path: Path, damage: str
) -> None:
    await fill_in(store, clock)
    path = Journal(store.root, "users/alice").path
    shutil.copy(path, tmp_path / "earlier")
    await make_long(store)
    await store.sweep()
    await keep(store, b"new", "new.txt")
    before, stored = await all_of(store), objects(store)
    if damage == "removed":
        path.unlink()
    elif damage == "an earlier one":
        shutil.copy(tmp_path / "earlier", path)
    else:
        os.truncate(path, 100 if damage == "cut" else 0)

    assert await all_of(store) == before
    assert list(await store.sweep()) == []
    removed(index_of(store))

    assert await all_of(store) == before
    assert (objects(store), apart(store)) == (stored, [])


async def test_a_damaged_line_costs_that_line_and_its_bytes_are_set_apart(
    store: LocalStore, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    await fill_in(store, clock)
    before, contents = await store.list(scope=ALICE), await read_all(store)
    path = Journal(store.root, "users/alice").path
    lines = path.read_bytes().splitlines(keepends=True)
    [number] = [n for n, line in enumerate(lines) if b'"later.csv"' in line]
    lines[number] = lines[number].replace(b"later.csv", b"LATER.csv")
    path.write_bytes(b"".join(lines))
    removed(index_of(store))

    assert await store.list(scope=ALICE) == [record for record in before if record.name != "later.csv"]
    await store.sweep()

    [there] = apart(store)
    [lost] = [record for record in before if record.name == "later.csv"]
    assert (there.area, there.sha256, there.size) == ("users/alice", lost.sha256, lost.size)
    assert [copy.read_bytes() for copy in path.parent.glob("journal.damaged-*")] == [b"".join(lines)]
    assert {"index made anew from the journals", "bytes set apart"} <= {r.message for r in caplog.records}
    await store.sweep()
    assert len(apart(store)) == 1
    again = await keep(store, b"later", "later.csv")
    assert await content_of(store, again) == contents[ALICE, lost.id, "later.csv"]


@pytest.mark.parametrize(
    "line",
    [
        b'{"row": {"sha256": "../../../etc/passwd"}}',
        b'{"row": []}',
        b'{"gone": ["", "files"], "sha256": "x"}',
        b"[" * 100_000,
        b'{"row": {"session": "", "trace": null, "retention": "files", "id": "art_1", "name": "../../x", '
        b'"wanted": "x", "size": 1, "sha256": "' + b"a" * 64 + b'", "mime": "x", "said": "{}", "created": 1, '
        b'"expires": null, "put": 1}}',
    ],
)
async def test_lines_that_no_program_of_ours_wrote_say_nothing(store: LocalStore, line: bytes) -> None:
    import zlib

    kept = await keep(store, b"x", "a.txt")
    with Journal(store.root, "users/alice").path.open("ab") as file:
        file.write(b"%08x %s\n" % (zlib.crc32(line), line))

    assert await store.list(scope=ALICE) == [kept]
    removed(index_of(store))
    assert await store.list(scope=ALICE) == [kept]


async def test_a_journal_of_a_later_version_is_refused_to_its_user_alone(store: LocalStore) -> None:
    import zlib

    await keep(store, b"x", "a.txt")
    bobs = await keep(store, b"x", "a.txt", BOB)
    head = b'{"journal": 2}'
    path = Journal(store.root, "users/alice").path
    path.write_bytes(b"%08x %s\n" % (zlib.crc32(head), head))
    later = path.read_bytes()
    removed(index_of(store))

    assert await store.list(scope=BOB) == [bobs]
    await store.sweep()
    for act in (store.list(scope=ALICE), keep(store, b"y", "b.txt")):
        with pytest.raises(CallError, match="a journal has version 2") as raised:
            await act
        assert raised.value.code is Code.E_STORE
    assert path.read_bytes() == later
    assert len(objects(store)) == 2


async def test_bytes_that_nothing_knows_are_set_apart_and_never_removed(store: LocalStore) -> None:
    kept = await keep(store, b"kept", "a.txt")
    stranger = store.root / "users/alice/objects/ab" / ("ab" + "0" * 62)
    stranger.parent.mkdir()
    stranger.write_text("whose?")

    for _ in range(3):
        assert list(await store.sweep()) == []

    assert apart(store) == [Bytes(area="users/alice", sha256=stranger.name, size=6)]
    assert await content_of(store, kept) == b"kept"


def test_processes_that_make_the_index_anew_at_once_lose_no_put_of_each_other(tmp_path: Path) -> None:
    answers = run(
        """
import asyncio, os, sys
from pathlib import Path
from store_world import ALICE, BOB, content_of, keep
from runner.errors import CallError
from runner.store.local.store import LocalStore
store = LocalStore(Path(sys.argv[1]))
async def put(name, scope):
    while True:
        try:
            return await keep(store, name.encode(), name, scope)
        except CallError as error:
            # Nothing was promised; a caller tries again.
            assert error.retryable
async def work(number):
    for turn in range(12):
        name = f"{number}-{turn}"
        await put(name, ALICE if number % 2 else BOB)
        if turn % 4 == number % 4:
            (store.root / "index.sqlite").unlink(missing_ok=True)
for number in range(6):
    if os.fork() == 0:
        asyncio.run(work(number))
        os._exit(0)
ended = [os.wait()[1] for _ in range(6)]
async def look():
    await store.sweep()
    for scope in (ALICE, BOB):
        found = {record.name: await content_of(store, record) for record in await store.list(scope=scope)}
        print(len(found), all(content.decode() == name for name, content in found.items()))
    print(len(list(store.root.glob("*/*/quarantine/*"))), ended)
asyncio.run(look())
        """,
        tmp_path / "store",
    )

    assert answers.splitlines() == ["36 True", "36 True", "0 [0, 0, 0, 0, 0, 0]"]


ACTS = {
    "put": 'await keep(store, b"new", "new.txt")',
    "put again": 'await keep(store, b"first", "first.txt", facts={"rows": 1})',
    "put in a new area": 'await keep(store, b"new", "new.txt", BOB)',
    "delete": 'await store.delete((await store.find("first.txt", scope=ALICE)).id, scope=ALICE)',
    "expire": "await LocalStore(store.root, clock=lambda: datetime.max.replace(tzinfo=UTC)).sweep()",
    "rebuild": 'removed(store.root); await keep(store, b"new", "new.txt")',
}
_CRASHES = """
import asyncio, os, shutil, signal, sys, threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from store_world import ALICE, BOB, content_of, keep
from runner.store.local.store import LocalStore

base = Path(sys.argv[1])
CHANGING = set("fdatasync fsync ftruncate link mkdir rename replace truncate unlink write writelines".split())
SQLITE = {"close", "execute", "executemany"}

def removed(root):
    for path in root.glob("index.sqlite*"):
        path.unlink()

def in_a_child(work):
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(work())
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

async def before():
    store = LocalStore(base / "first")
    await keep(store, b"first", "first.txt")
    await keep(store, b"ends", "ends.txt", expires_at=datetime.now(UTC) + timedelta(hours=1))

def killed_at(number):
    # Before every call into the kernel or into SQLite that changes something the process may end.
    left = number
    def count(frame, event, called):
        nonlocal left
        name, of = getattr(called, "__name__", ""), repr(getattr(called, "__self__", ""))
        if event == "c_call" and (name in CHANGING or ("sqlite3" in of and name in SQLITE)):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    threading.setprofile(count)

async def act(store):
    ACT

async def state(store):
    found = {}
    for scope in (ALICE, BOB):
        for record in await store.list(scope=scope):
            found[scope.user_id, record.name] = (await content_of(store, record), bool(record.said.facts))
    return found

async def look(root):
    store = LocalStore(root)
    found = await state(store)
    swept = await store.sweep()
    assert await state(store) == found
    assert store.missing() == [], store.missing()
    assert {reason.reason.name for reason in swept} <= {"LEFT_BEHIND"}, swept
    apart = list(root.glob("*/*/quarantine/*"))
    objects = {path.read_bytes() for path in root.glob("*/*/objects/*/*")}
    assert {content for content, _ in found.values()} == objects, (found, objects)
    assert not list(root.glob("*/*/incoming/*"))
    (base / "state").write_text(repr((sorted(found.items()), len(apart))))

def looked(root):
    assert in_a_child(lambda: look(root)) == 0, root
    return (base / "state").read_text()

assert in_a_child(before) == 0
states, number, ended = set(), 0, None
while ended != 0:
    number += 1
    root = base / "store"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(base / "first", root)
    async def work():
        killed_at(number)
        await act(LocalStore(root))
    ended = in_a_child(work)
    assert ended in (0, -9), ended
    copy = base / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root, copy)
    removed(copy)
    # What the index says is what the journals say.
    with_index, without = looked(root), looked(copy)
    assert with_index.rpartition(",")[0] == without.rpartition(",")[0], (number, with_index, without)
    assert with_index.endswith(", 0)") or ACT_IS_REBUILD, (number, with_index)
    states.add(with_index.rpartition(",")[0])
print(number, len(states))
"""


@pytest.mark.parametrize("act", ACTS)
def test_killed_at_any_call_an_act_has_happened_or_not_with_its_index_and_without(
    tmp_path: Path, act: str
) -> None:
    code = _CRASHES.replace("    ACT\n", f"    {ACTS[act]}\n").replace(
        "ACT_IS_REBUILD", str(act == "rebuild")
    )

    # In memory: what a kill leaves is the same there, and nothing waits.
    with small_disk(tmp_path / "disk", mib=64) as disk:
        points, states = map(int, run(code, disk, timeout=200).split())

    assert points > 20
    assert states == 2


async def test_on_a_full_disk_the_reserve_makes_the_index_anew(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        store = LocalStore(disk / "store")
        kept = [await keep(store, b"%d" % number, f"{number}.txt") for number in range(40)]
        before = await store.list(scope=ALICE)
        removed(index_of(store))
        fill(disk)

        assert await store.list(scope=ALICE) == before
        assert await store.delete(kept[0].id, scope=ALICE)
        assert len(await store.list(scope=ALICE)) == 39


async def test_a_full_disk_without_reserve_while_the_index_is_made_anew_costs_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        store = LocalStore(disk / "store")
        for number in range(40):
            await keep(store, b"%d" % number, f"{number}.txt")
        before, stored = await store.list(scope=ALICE), objects(store)
        while Reserve(store.root).give():
            pass
        removed(index_of(store))
        everything = fill(disk)

        for act in (store.list(scope=ALICE), store.sweep(), store.check()):
            with pytest.raises(CallError) as raised:
                await act
            assert (raised.value.code, raised.value.retryable) == (Code.E_STORE, True)
        full = sorted(path.name for path in store.root.iterdir())
        everything.unlink()

        assert full == ["reserve", "users"]
        assert await store.list(scope=ALICE) == before
        assert list(await store.sweep()) == []
        assert (objects(store), apart(store)) == (stored, [])


async def test_a_put_that_finds_the_disk_full_is_in_no_journal(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        store = LocalStore(disk / "store")
        kept = await keep(store, b"kept", "kept.txt")
        everything = fill(disk)
        for _ in range(3):
            with pytest.raises(CallError):
                await keep(store, b"never", "never.txt")
        everything.unlink()
        removed(index_of(store))

        assert await store.list(scope=ALICE) == [kept]
        await store.sweep()
        assert await content_of(store, kept) == b"kept"


async def test_a_look_at_a_store_says_what_is_wrong_and_changes_nothing(
    store: LocalStore, clock: Clock
) -> None:
    await fill_in(store, clock)
    sound = examine(store.root)
    stranger = store.root / "users/bob/objects/ab" / ("ab" + "0" * 62)
    stranger.parent.mkdir()
    stranger.write_text("whose?")
    await store.sweep()
    with Journal(store.root, "users/alice").path.open("ab") as file:
        file.write(b"torn")
    removed(index_of(store))
    missing = {finding.name: finding.detail for finding in examine(store.root)}
    index_of(store).write_bytes(b"no database" * 1000)
    damaged = {finding.name: finding.detail for finding in examine(store.root)}

    assert [(finding.name, finding.detail, finding.cure) for finding in sound] == [("index", "sound", None)]
    assert missing == {
        "index": "missing",
        "journal": "users/alice: 1 lines cannot be read",
        "quarantine": "users/bob/quarantine: 1 files of 6 bytes that no record knows",
    }
    assert damaged["index"] == "damaged: file is not a database"
    assert index_of(store).read_bytes() == b"no database" * 1000
    assert examine(store.root / "none") == []
