"""Faults of a store: reported correctly, within seconds, and without secrets."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from disks import fill, read_only, small_disk
from pydantic import SecretStr
from suite import ALICE

from runner.errors import CallError, Code
from runner.store.checking import Check
from runner.store.local.blobs import LocalBlobs
from runner.store.noop import NoStore
from runner.store.protocol import Put
from runner.store.s3.bucket import BucketAddress
from runner.store.s3.store import S3Store
from runner.store.spool import Spool, SpoolingStore
from runner.store.store import BlobStore

pytestmark = [pytest.mark.anyio, pytest.mark.needs_root]


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


async def test_a_store_that_works_has_no_fault(tmp_path: Path, rgw: BucketAddress) -> None:
    for store in (BlobStore(LocalBlobs(tmp_path)), BlobStore(), NoStore(), S3Store(rgw)):
        assert await store.fault() is None
    assert await SpoolingStore(S3Store(rgw), Spool(tmp_path / "spool")).fault() is None
    assert [path.name for path in tmp_path.rglob(".trial*")] == []


async def test_full_disk_is_a_fault_until_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        await BlobStore(LocalBlobs(disk / "store")).put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
        taken = fill(disk)

        message = str(await BlobStore(LocalBlobs(disk / "store")).fault())
        taken.unlink()

        assert "No space left" in message
        assert str(tmp_path) not in message
        assert await BlobStore(LocalBlobs(disk / "store")).fault() is None


async def test_a_local_store_that_is_read_only_says_so(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        await BlobStore(LocalBlobs(disk / "store")).put_bytes(b"x", Put(name="a.txt"), scope=ALICE)
        with read_only(disk):
            assert "Read-only" in str(await BlobStore(LocalBlobs(disk / "store")).fault())


@pytest.mark.parametrize("wrong", ["access_key", "secret_key", "bucket"])
async def test_wrong_key_or_bucket_is_a_fault_with_cure_and_no_secret(
    rgw: BucketAddress, wrong: str, tmp_path: Path
) -> None:
    changed = {wrong: "no-such-bucket-here" if wrong == "bucket" else SecretStr("wrong-secret")}
    store = SpoolingStore(S3Store(replace(rgw, **changed)), Spool(tmp_path / "spool"))  # type: ignore[arg-type]

    message = str(await store.fault())

    assert ("make the bucket" if wrong == "bucket" else "AWS_SECRET_ACCESS_KEY") in message
    assert rgw.access_key is not None
    assert rgw.secret_key is not None
    for secret in (rgw.secret_key.get_secret_value(), "wrong-secret", "no-such-bucket", "127.0.0.1"):
        assert secret not in message


async def test_silent_server_is_a_fault(rgw: BucketAddress, silent: str) -> None:
    assert "has not answered" in str(await S3Store(replace(rgw, endpoint=silent)).fault())


async def test_a_full_spool_is_a_fault(rgw: BucketAddress, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        fill(disk)

        message = str(await SpoolingStore(S3Store(rgw), Spool(disk / "spool")).fault())

    assert "No space left" in message


async def test_one_check_serves_all_callers_and_is_cached() -> None:
    looks: list[int] = []
    go_on = threading.Event()

    def look() -> str:
        looks.append(1)
        go_on.wait(60)
        return f"look {len(looks)}"

    check = Check(limit_s=60, keep_s=3600)
    asking = [asyncio.ensure_future(check.ask(look)) for _ in range(20)]
    await asyncio.sleep(0)
    # One who gives up takes nothing from the others.
    asking.pop().cancel()
    go_on.set()

    assert await asyncio.gather(*asking) == ["look 1"] * 19
    assert await check.ask(look) == "look 1"
    assert await Check(keep_s=0).ask(look) == "look 2"


async def test_what_a_look_raises_is_raised() -> None:
    def look() -> None:
        raise CallError(Code.E_STORE, "the bucket is gone")

    with pytest.raises(CallError, match="the bucket is gone"):
        await Check().ask(look)
