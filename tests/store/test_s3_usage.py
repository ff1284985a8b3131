"""Usage of a user in S3 without a full listing for each put; large files read only once."""

import os
import time
from pathlib import Path

import pytest
from s3_servers import raw_client, watching
from suite import ALICE, read

from runner.errors import CallError, Code
from runner.store.protocol import Put, Scope
from runner.store.retention import Quota, RetentionRules
from runner.store.s3.bucket import PART_BYTES, Bucket, BucketAddress
from runner.store.s3.store import FRESH_S, S3Store

pytestmark = [pytest.mark.anyio, pytest.mark.needs_s3, pytest.mark.release]

LARGE = PART_BYTES + 5


def bytes_in(address: BucketAddress) -> list[int]:
    """The lengths of the files that the bucket holds."""
    return [item.size for item in Bucket(address).list(f"{address.prefix}alice/artifacts/")]


def counting_listings(
    address: BucketAddress, prefix: str, rules: RetentionRules
) -> tuple[S3Store, list[str]]:
    """Return a store, and where each of its listings of something that begins with `prefix` is noted."""
    requests: list[str] = []

    def note(params: dict[str, str], **_: object) -> None:
        if params["Prefix"].startswith(prefix):
            requests.append(params["Prefix"])

    with watching("provide-client-params.s3.ListObjectsV2", note):
        return S3Store(address, rules=rules), requests


@pytest.mark.parametrize("size", [100, LARGE], ids=["small", "in parts"])
async def test_equal_content_counts_once_across_names_and_sessions(rgw: BucketAddress, size: int) -> None:
    rules = RetentionRules(files=Quota(max_user_bytes=size + 50))
    content = os.urandom(size)
    await S3Store(rgw, rules=rules).put_bytes(content, Put(name="a.bin"), scope=ALICE)
    session = Scope(user_id="alice", session_id="s")

    await S3Store(rgw, rules=rules).put_bytes(content, Put(name="b.bin"), scope=ALICE)
    await S3Store(rgw, rules=rules).put_bytes(content, Put(name="c.bin"), scope=session)
    await S3Store(rgw, rules=rules).put_bytes(b"x" * 50, Put(name="d.bin"), scope=ALICE)

    with pytest.raises(CallError) as refused:
        await S3Store(rgw, rules=rules).put_bytes(b"y", Put(name="e.bin"), scope=ALICE)
    assert refused.value.code is Code.E_QUOTA
    assert refused.value.details["used_bytes"] == size + 50


async def test_own_puts_are_counted_without_another_listing(rgw: BucketAddress) -> None:
    rules = RetentionRules(files=Quota(max_user_bytes=10))
    store, listings = counting_listings(rgw, f"{rgw.prefix}alice/records/", rules)

    for number in range(5):
        await store.put_bytes(b"%02d" % number, Put(name=f"{number}.txt"), scope=ALICE)

    assert len(listings) == 1
    with pytest.raises(CallError) as refused:
        await store.put_bytes(b"x", Put(name="x.txt"), scope=ALICE)
    assert refused.value.details["used_bytes"] == 10


async def test_what_a_host_removes_makes_room_at_once(rgw: BucketAddress) -> None:
    store = S3Store(rgw, rules=RetentionRules(files=Quota(max_user_bytes=10)))
    record = await store.put_bytes(b"x" * 10, Put(name="a.txt"), scope=ALICE)
    with pytest.raises(CallError):
        await store.put_bytes(b"y" * 10, Put(name="b.txt"), scope=ALICE)

    await store.delete(record.id, scope=ALICE)

    assert (await store.put_bytes(b"y" * 10, Put(name="b.txt"), scope=ALICE)).size == 10


async def test_nobody_is_refused_by_an_old_listing(rgw: BucketAddress) -> None:
    rules = RetentionRules(files=Quota(max_user_bytes=10))
    here, there = S3Store(rgw, rules=rules), S3Store(rgw, rules=rules)
    record = await here.put_bytes(b"x" * 10, Put(name="a.txt"), scope=ALICE)
    await there.delete(record.id, scope=ALICE)

    assert (await here.put_bytes(b"y" * 10, Put(name="b.txt"), scope=ALICE)).size == 10


async def test_what_another_host_put_is_counted_half_a_minute_later(
    rgw: BucketAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = RetentionRules(files=Quota(max_user_bytes=10))
    here, there = S3Store(rgw, rules=rules), S3Store(rgw, rules=rules)
    await here.put_bytes(b"1", Put(name="a.txt"), scope=ALICE)
    await there.put_bytes(b"22222", Put(name="b.txt"), scope=ALICE)
    # Not seen yet, so both together are above the quota.
    await here.put_bytes(b"333333", Put(name="c.txt"), scope=ALICE)
    later = time.monotonic() + FRESH_S + 1
    monkeypatch.setattr("runner.store.store.time.monotonic", lambda: later)

    with pytest.raises(CallError) as refused:
        await here.put_bytes(b"4", Put(name="d.txt"), scope=ALICE)

    assert refused.value.details["used_bytes"] == 12


async def test_large_file_of_a_new_length_is_sent_before_its_digest(
    rgw: BucketAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "large.bin"
    path.write_bytes(os.urandom(LARGE))
    digested: list[object] = []

    def note(source: object) -> tuple[str, int]:
        digested.append(source)
        raise RuntimeError("digested before it is sent")

    monkeypatch.setattr("runner.store.s3.blobs.digest_of", note)
    store = S3Store(rgw)

    record = await store.put_file(path, Put(name="a.bin"), scope=ALICE)

    assert digested == []
    assert await read(store, record) == path.read_bytes()
    # It may be the same file now: that is found out before anything is sent.
    with pytest.raises(RuntimeError, match="digested before"):
        await store.put_file(path, Put(name="a.bin"), scope=ALICE)


async def test_large_file_just_put_by_another_host_is_one_artifact(
    rgw: BucketAddress, tmp_path: Path
) -> None:
    path = tmp_path / "large.bin"
    path.write_bytes(os.urandom(LARGE))
    here, there = S3Store(rgw), S3Store(rgw)
    # Their listing from before does not know the file.
    await there.put_bytes(b"x", Put(name="x.txt"), scope=ALICE)
    first = await here.put_file(path, Put(name="a.bin"), scope=ALICE)

    second = await there.put_file(path, Put(name="a.bin"), scope=ALICE)

    assert (second.id, second.name, second.key) == (first.id, first.name, first.key)
    assert sorted(bytes_in(rgw)) == [1, LARGE]


async def test_large_file_just_put_by_another_host_needs_no_room(rgw: BucketAddress, tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    path.write_bytes(os.urandom(LARGE))
    rules = RetentionRules(files=Quota(max_user_bytes=LARGE + 10))
    here, there = S3Store(rgw, rules=rules), S3Store(rgw, rules=rules)
    record = await there.put_bytes(b"x" * LARGE, Put(name="x.bin"), scope=ALICE)
    await here.delete(record.id, scope=ALICE)
    await here.put_file(path, Put(name="a.bin"), scope=ALICE)

    assert (await there.put_file(path, Put(name="b.bin"), scope=ALICE)).name == "b.bin"


async def test_large_file_changed_while_sent_leaves_nothing(rgw: BucketAddress, tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    path.write_bytes(bytes(3 * PART_BYTES))

    def meddle(**_: object) -> None:
        with path.open("r+b") as file:
            file.write(b"changed")

    with watching("before-call.s3.UploadPart", meddle):
        store = S3Store(rgw)

    with pytest.raises(CallError, match="changed while") as refused:
        await store.put_file(path, Put(name="a.bin"), scope=ALICE)

    assert refused.value.code is Code.E_STORE
    assert bytes_in(rgw) == []
    assert await store.find("a.bin", scope=ALICE) is None


async def test_parts_of_a_large_file_are_joined_in_order(rgw: BucketAddress, tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    path.write_bytes(b"".join(bytes([number]) * PART_BYTES for number in range(9)) + b"end")

    record = await S3Store(rgw).put_file(path, Put(name="a.bin"), scope=ALICE)

    stored = raw_client(rgw).get_object(Bucket=rgw.bucket, Key=record.key)["Body"].read()
    assert stored == path.read_bytes()
