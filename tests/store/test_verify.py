"""`runner doctor --verify` reads every stored content, and names each that is damaged."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from s3_servers import raw_client
from suite import ALICE, BOB
from test_damage import Away, flip_in, flipped, place_of_bytes

from runner.store.local.blobs import LocalBlobs
from runner.store.protocol import Put, Retention
from runner.store.reports import Damage
from runner.store.s3.bucket import BucketAddress
from runner.store.s3.store import S3Store
from runner.store.spool import Spool, SpoolingStore
from runner.store.store import BlobStore

pytestmark = [pytest.mark.anyio, pytest.mark.needs_s3]


async def test_a_local_store_names_what_is_damaged_cut_or_missing(tmp_path: Path) -> None:
    store = BlobStore(LocalBlobs(tmp_path))
    good = await store.put_bytes(b"good", Put(name="good.txt"), scope=ALICE)
    await store.put_bytes(b"good", Put(name="again.txt"), scope=ALICE)
    seen = await store.put_bytes(b"seen", Put(retention=Retention.OBSERVATIONS), scope=BOB)
    lost = await store.put_bytes(b"lost", Put(name="lost.txt"), scope=BOB)
    cut = await store.put_bytes(b"cut short", Put(name="cut.txt"), scope=BOB)
    before = await store.verify()

    flip_in(place_of_bytes(tmp_path, seen), 2)
    place_of_bytes(tmp_path, lost).unlink()
    os.truncate(place_of_bytes(tmp_path, cut), 3)
    after = await store.verify()

    assert (before.files, before.bytes, before.damaged) == (4, 4 + 4 + 4 + 9, [])
    assert place_of_bytes(tmp_path, good).read_bytes() == b"good"
    assert sorted(after.damaged, key=lambda each: each.shown) == [
        Damage(shown=seen.id, area="users/bob", problem="its bytes are not the ones that were put"),
        Damage(shown="cut.txt", area="users/bob", problem="3 of its 9 bytes are there"),
        Damage(shown="lost.txt", area="users/bob", problem="its bytes are missing"),
    ]


async def test_a_bucket_and_its_spool_are_read_too(rgw: BucketAddress, tmp_path: Path) -> None:
    store, client = S3Store(rgw), raw_client(rgw)
    await store.put_bytes(b"good", Put(name="good.txt"), scope=ALICE)
    await store.put_bytes(b"", Put(name="empty.txt"), scope=ALICE)
    bad = await store.put_bytes(os.urandom(3_000_000), Put(name="bad.bin"), scope=ALICE)
    lost = await store.put_bytes(b"lost", Put(name="lost.txt"), scope=BOB)
    spool = Spool(tmp_path / "spool")
    await SpoolingStore(Away(), spool).put_bytes(b"waits", Put(name="w.txt"), scope=BOB)
    before = await SpoolingStore(store, spool).verify()

    content = client.get_object(Bucket=rgw.bucket, Key=bad.key)["Body"].read()
    client.put_object(Bucket=rgw.bucket, Key=bad.key, Body=flipped(content, 2_000_000))
    client.delete_object(Bucket=rgw.bucket, Key=lost.key)
    flip_in(next((tmp_path / "spool").rglob("objects/*")), 1)
    after = await SpoolingStore(store, spool).verify()

    assert (before.files, before.damaged) == (5, [])
    assert {(each.shown, each.area) for each in after.damaged} == {
        ("bad.bin", "users/alice"),
        ("lost.txt", "users/bob"),
        ("w.txt", "users/bob"),
    }


def doctor(folder: Path) -> "subprocess.CompletedProcess[str]":
    env = {
        **os.environ,
        "RUNNER_STATE_DIR": str(folder / "state"),
        "RUNNER_STORE": (folder / "store").as_uri(),
    }
    command = [sys.executable, "-m", "runner", "doctor", "--verify"]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


async def test_the_command_names_a_damaged_file_and_ends_with_1(tmp_path: Path) -> None:
    record = await BlobStore(LocalBlobs(tmp_path / "store")).put_bytes(
        b"content", Put(name="a.txt"), scope=ALICE
    )
    whole = doctor(tmp_path)
    flip_in(place_of_bytes(tmp_path / "store", record), 0)
    damaged = doctor(tmp_path)

    assert "1 contents read, 7 bytes, 0 damaged" in whole.stdout
    assert "'a.txt' in users/alice: its bytes are not the ones that were put" in damaged.stdout
    assert damaged.returncode == 1
