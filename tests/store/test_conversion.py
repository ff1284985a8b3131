"""Stores of earlier versions: converted once, with every file, whatever is missing or damaged there."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from old_stores import journal_line, make_bucket, make_version_1, make_version_3
from store_world import ALICE, content_of, keep, root_of, run

from runner.errors import CallError
from runner.store.local.blobs import LocalBlobs
from runner.store.local.conversion import is_old
from runner.store.protocol import Origin
from runner.store.s3.bucket import Bucket, BucketAddress
from runner.store.s3.store import S3Store
from runner.store.store import BlobStore

pytestmark = pytest.mark.anyio


async def contents(store: BlobStore) -> dict[str | None, bytes]:
    return {record.name: await content_of(store, record) for record in await store.list(scope=ALICE)}


async def test_version_1_is_converted_with_every_file(tmp_path: Path) -> None:
    expected = make_version_1(tmp_path / "store", 40)
    store = BlobStore(LocalBlobs(tmp_path / "store"))

    records = await store.list(scope=ALICE)

    assert await contents(store) == expected
    assert {record.metadata.origin for record in records} == {Origin.UPLOADED}
    assert {record.expires_at for record in records} == {None}
    newest = await store.find("40.csv", scope=ALICE)
    assert newest is not None
    assert newest.created.timestamp() == 1.7e9 + 39
    assert await store.sweep() == []
    assert (await keep(store, b"row\n", "1.csv")).id == records[0].id
    assert (await keep(store, b"other", "1.csv")).name == "1_2.csv"


async def test_version_3_is_converted_by_journal_and_index(tmp_path: Path) -> None:
    expected = make_version_3(tmp_path / "store")
    store = BlobStore(LocalBlobs(tmp_path / "store"))

    assert await contents(store) == expected

    found = await store.find("3.txt", scope=ALICE)
    assert found is not None
    assert (found.metadata.facts, found.created.timestamp()) == ({"rows": 3}, 1.7e9 + 3)
    assert not is_old(root_of(store))
    assert sorted(path.name for path in root_of(store).iterdir()) == ["index.sqlite", "users"]
    assert not (root_of(store) / "users/alice/journal").exists()
    assert await store.delete(found.id, scope=ALICE)
    assert store.orphans() == []


async def test_a_late_expiry_of_version_3_is_converted(tmp_path: Path) -> None:
    make_version_3(tmp_path / "store", expires=253402300799.0)

    found = await BlobStore(LocalBlobs(tmp_path / "store")).find("3.txt", scope=ALICE)

    assert found is not None
    assert found.expires_at is not None
    assert found.expires_at.timestamp() == 253402300799.0


@pytest.mark.parametrize("damage", ["lost", "empty", "torn", "not a database"])
async def test_a_lost_index_costs_nothing_that_a_journal_names(tmp_path: Path, damage: str) -> None:
    expected = make_version_3(tmp_path / "store")
    index = tmp_path / "store/index.sqlite"
    for path in index.parent.glob("index.sqlite-*"):
        path.unlink()
    content = index.read_bytes()
    index.unlink()
    if damage != "lost":
        broken = {"empty": b"", "torn": content[:6000], "not a database": b"no database" * 900}
        index.write_bytes(broken[damage])

    assert await contents(BlobStore(LocalBlobs(tmp_path / "store"))) == expected


async def test_a_lost_journal_costs_nothing_that_the_index_names(tmp_path: Path) -> None:
    expected = make_version_3(tmp_path / "store")
    (tmp_path / "store/users/alice/journal").unlink()

    found = await contents(BlobStore(LocalBlobs(tmp_path / "store")))

    assert found == {"0.txt": expected["0.txt"], "1.txt": expected["1.txt"], "gone.txt": expected["0.txt"]}


async def test_a_torn_line_costs_one_file_and_is_kept(tmp_path: Path) -> None:
    expected = make_version_3(tmp_path / "store")
    journal = tmp_path / "store/users/alice/journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[5] = lines[5][:30] + b"\n"
    journal.write_bytes(b"".join(lines))

    found = await contents(BlobStore(LocalBlobs(tmp_path / "store")))

    assert found == {name: content for name, content in expected.items() if name != "4.txt"}
    assert journal.with_name("journal.damaged").read_bytes() == b"".join(lines)
    assert [blob.size for blob in BlobStore(LocalBlobs(tmp_path / "store")).orphans()] == [len(b"content 4")]


async def test_bytes_in_quarantine_are_found_by_their_record(tmp_path: Path) -> None:
    expected = make_version_3(tmp_path / "store")
    area = tmp_path / "store/users/alice"
    (area / "quarantine").mkdir()
    for path in area.glob("objects/*/*"):
        path.rename(area / "quarantine" / path.name)

    assert await contents(BlobStore(LocalBlobs(tmp_path / "store"))) == expected


@pytest.mark.parametrize("later", ["index", "journal"])
async def test_a_store_of_a_later_version_is_refused_and_left_alone(tmp_path: Path, later: str) -> None:
    make_version_3(tmp_path / "store")
    if later == "index":
        with closing(sqlite3.connect(tmp_path / "store/index.sqlite")) as connection:
            connection.execute("PRAGMA user_version = 5")
    else:
        head = journal_line({"journal": 2, "generation": 1, "id": "x"})
        (tmp_path / "store/users/alice/journal").write_bytes(head)
    before = {path: path.stat().st_size for path in (tmp_path / "store/users").rglob("*") if path.is_file()}

    with pytest.raises(CallError, match=r"has version \d, later than this program"):
        await BlobStore(LocalBlobs(tmp_path / "store")).list(scope=ALICE)

    found = (path for path in (tmp_path / "store/users").rglob("*") if path.is_file())
    assert before.items() <= {path: path.stat().st_size for path in found}.items()


def test_concurrent_opens_of_an_old_store_all_find_every_file(tmp_path: Path) -> None:
    make_version_1(tmp_path / "store", 20)

    answers = run(
        """
import asyncio, os, sys
from pathlib import Path
from runner.store.local.blobs import LocalBlobs
from runner.store.store import BlobStore
from runner.store.protocol import Scope
for _ in range(8):
    if os.fork() == 0:
        store = BlobStore(LocalBlobs(Path(sys.argv[1])))
        found = len(asyncio.run(store.list(scope=Scope(user_id="alice"))))
        os.write(1, b"%d\\n" % found)
        os._exit(0)
for _ in range(8):
    os.wait()
        """,
        tmp_path / "store",
    )

    assert answers.split() == ["20"] * 8


@pytest.mark.needs_s3
async def test_bucket_of_an_earlier_version_is_converted(rgw: BucketAddress) -> None:
    make_bucket(rgw)
    store = S3Store(rgw)

    records = {record.name: record for record in await store.list(scope=ALICE)}

    assert sorted(map(str, records)) == ["a.csv", "ends.txt", "lost.txt"]
    assert [await content_of(store, record) for record in records.values()] == [
        b"a.csv",
        b"ends.txt",
        b"lost.txt",
    ]
    assert {name for name, record in records.items() if record.expires_at} == {"ends.txt"}
    assert {str(record.metadata.facts) for record in records.values()} == {"{'rows': 3}"}
    left = [item.key.removeprefix(f"{rgw.prefix}alice/") for item in Bucket(rgw).list(f"{rgw.prefix}alice/")]
    assert {key.split("/")[0] for key in left} == {"artifacts", "records"}
