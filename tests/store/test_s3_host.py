"""The runner with a store in S3: settings, calls, and credentials that stay in the host."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from attack_support import found_in_memory
from process_tree import descendants, forkservers
from s3_servers import CuttingProxy
from store_world import root_of
from suite import Clock, read
from support import TOOLS, call

from runner.errors import UsageError
from runner.settings.settings import Settings
from runner.settings.sources import config_report, config_text, load
from runner.store.opening import open_store
from runner.store.protocol import Put, Scope
from runner.store.retention import RetentionRules
from runner.store.s3.bucket import BucketAddress
from runner.store.s3.store import S3Store
from runner.store.spool import Spool, SpoolingStore
from runner.store.store import BlobStore
from runner.toolset.toolset import Toolset
from runner.toolset.user_pool import HomeAccess
from runner.users.identity import User

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.needs_s3]


def settings_for(address: BucketAddress, folder: Path, **more: object) -> Settings:
    return load(
        {
            "store": f"s3://{address.bucket}/{address.prefix.rstrip('/')}",
            "state_dir": folder / "state",
            **more,
        }
    )


async def test_call_stores_its_file_in_the_bucket_without_address(
    s3: BucketAddress, user: str, tmp_path: Path
) -> None:
    settings = settings_for(s3, tmp_path)

    async with Toolset.open(settings, [str(TOOLS / "files.py")]) as toolset:
        completed = await call(toolset, user, "make", name="ä report.txt", size=5)
        read_back = await call(toolset, user, "read", filename="ä report.txt")

    store = open_store(settings, RetentionRules())
    record = await store.find("ä report.txt", scope=Scope(user_id=user))
    assert record is not None
    assert await read(store, record, Scope(user_id=user)) == b"xxxxx"
    assert read_back.processed.value["results"]["text"] == "xxxxx"
    shown = json.dumps(completed.processed.value)
    assert "ä report.txt" in json.loads(shown)["artifacts"][0]["name"]
    for secret in (s3.bucket, str(s3.endpoint), "s3://", "X-Amz"):
        assert secret not in shown


async def test_call_without_server_spools_its_file_for_the_next_run(
    rgw: BucketAddress, user: str, tmp_path: Path
) -> None:
    with CuttingProxy(rgw, cut_after=0) as proxy, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL_S3", str(proxy.address.endpoint))
        gone = settings_for(proxy.address, tmp_path)
        waiting = await open_store(gone, RetentionRules()).put_bytes(
            b"x", Put(name="a.txt"), scope=Scope(user_id=user)
        )
    assert waiting.pending

    async with Toolset.open(settings_for(rgw, tmp_path), [str(TOOLS / "files.py")]) as toolset:
        read_back = await call(toolset, user, "read", filename="a.txt")

    assert read_back.processed.value["results"]["text"] == "x"


async def test_stopping_server_sends_what_waits_for_the_bucket(
    rgw: BucketAddress, user: str, tmp_path: Path
) -> None:
    with CuttingProxy(rgw, cut_after=0) as proxy, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL_S3", str(proxy.address.endpoint))
        settings, scope = settings_for(proxy.address, tmp_path), Scope(user_id=user)
        async with Toolset.open(settings, [str(TOOLS / "files.py")]) as toolset:
            await call(toolset, user, "make", name="a.txt", size=5)
            spool = Spool(settings.spool_path)
            assert len(spool.all()) == 1
            proxy.cut_after = 1 << 40
            found_before = await S3Store(rgw).find("a.txt", scope=scope)

        assert (found_before, spool.all()) == (None, [])
        assert await S3Store(rgw).find("a.txt", scope=scope) is not None


async def test_no_key_of_the_store_is_in_any_process_below_the_host(
    rgw: BucketAddress, user: str, tmp_path: Path
) -> None:
    settings = settings_for(rgw, tmp_path)

    async with Toolset.open(settings, [str(TOOLS / "attack.py")]) as toolset:
        environment = await call(toolset, user, "act", name="environment", arguments=[])
        async with toolset.user_pool(
            User(user), toolset.key(User(user), access=HomeAccess.WRITE)
        ) as user_pool:
            # The worker that has answered is still being reaped.
            await user_pool.pool.zygote.settled()
        forkserver = forkservers()[0]
        below = [forkserver, *descendants(forkserver)]
        secret = os.environ["AWS_SECRET_ACCESS_KEY"].encode()
        leaked = [pid for pid in below if found_in_memory(pid, secret)]

    assert found_in_memory(os.getpid(), secret)
    assert len(below) >= 3
    assert leaked == []
    shown = environment.processed.value["results"]["value"]
    assert [name for name in shown if name.startswith(("AWS_", "RUNNER_"))] == []


def test_no_setting_shows_a_key(tmp_path: Path) -> None:
    settings = load({"redis_url": "redis://:hidden@127.0.0.1/0", "state_dir": tmp_path})

    shown = f"{config_text(settings)} {config_report(settings)} {settings!r}"

    assert settings.redis_url is not None
    assert "(redacted)" in shown
    assert "hidden" not in shown


@pytest.mark.parametrize(
    ("url", "shown", "reason"),
    [
        (
            "s3://key:secret@bucket/prefix",
            "s3://[redacted]@bucket/prefix",
            "named as s3://bucket or s3://bucket/",
        ),
        ("s3://bucket?x=1", "s3://bucket?x=1", "named as s3://bucket or s3://bucket/prefix"),
        ("s3://", "s3://", "is not a bucket name: one has 3 to 63"),
        ("s3://Bucket_1", "s3://Bucket_1", "is not a bucket name: one has 3 to 63"),
        ("s3://bucket/../up", "s3://bucket/../up", "prefix: one has at most 200"),
        ("s3://bucket//x", "s3://bucket//x", "prefix: one has at most 200"),
        (f"s3://bucket/{'a' * 300}", f"s3://bucket/{'a' * 30}", "prefix: one has at most 200"),
    ],
)
def test_an_address_of_a_store_that_makes_no_sense_is_refused(url: str, shown: str, reason: str) -> None:
    assert load({"store": "s3://bucket/a-b/c.d/"}).store == "s3://bucket/a-b/c.d/"

    with pytest.raises(UsageError) as caught:
        load({"store": url})

    assert f"flag --store: '{shown}" in str(caught.value)
    assert "will not do for store: " in str(caught.value)
    assert reason in str(caught.value)
    assert "secret@" not in str(caught.value)


def test_without_an_s3_address_the_store_is_local(tmp_path: Path) -> None:
    store = open_store(Settings(store=tmp_path.as_uri(), state_dir=tmp_path), RetentionRules())

    assert isinstance(store, BlobStore)
    assert root_of(store) == tmp_path


def test_with_one_it_has_a_spool_in_the_folder_of_the_state(
    rgw: BucketAddress, tmp_path: Path, clock: Clock
) -> None:
    store = open_store(settings_for(rgw, tmp_path), RetentionRules())

    assert isinstance(store, SpoolingStore)
    assert store.spool.folder == tmp_path / "state" / "spool"
    assert store.unavailable == "spool"


def test_a_local_store_does_not_import_boto3() -> None:
    code = "import sys, runner.toolset.toolset; print([n for n in ('boto3', 'botocore') if n in sys.modules])"

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout == "[]\n"


async def test_library_logs_no_request_at_any_log_level(
    rgw: BucketAddress, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_for(rgw, tmp_path)
    caplog.set_level(logging.DEBUG)
    store = open_store(settings, RetentionRules())

    await store.put_bytes(b"x", Put(name="a.txt"), scope=Scope(user_id="alice"))

    assert "Credential=" not in caplog.text
    assert rgw.access_key is not None
    assert rgw.access_key.get_secret_value() not in caplog.text


def test_the_files_of_aws_are_read_by_nobody_but_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))

    assert tmp_path / "credentials" in Settings(store="s3://bucket", state_dir=tmp_path / "s").private_paths
