"""Stores for tests, over real servers, and a clock that stands still."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from s3_servers import juicefs, with_bucket
from suite import Clock

from runner.store.s3.bucket import BucketAddress

_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def rgw_bucket() -> BucketAddress:
    """A bucket on Ceph RGW, which runs until no test run needs it."""
    command = [str(_ROOT / "scripts/rgw"), "start", "--with", str(os.getpid())]
    started = subprocess.run(command, capture_output=True, text=True, check=False)
    assert started.returncode == 0, started.stderr
    server = json.loads(started.stdout)
    os.environ["AWS_ACCESS_KEY_ID"] = server["access_key"]
    os.environ["AWS_SECRET_ACCESS_KEY"] = server["secret_key"]
    os.environ["AWS_ENDPOINT_URL_S3"] = server["endpoint"]
    return with_bucket(server["endpoint"], server["access_key"], server["secret_key"])


@pytest.fixture(scope="session")
def juicefs_bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketAddress]:
    """A bucket on a JuiceFS gateway, which takes no notice of If-None-Match."""
    with juicefs(tmp_path_factory.mktemp("juicefs")) as address:
        yield address


@pytest.fixture
def rgw(rgw_bucket: BucketAddress, request: pytest.FixtureRequest) -> BucketAddress:
    """A part of the bucket that no other test has."""
    return _part(rgw_bucket, request)


@pytest.fixture
def s3(rgw: BucketAddress) -> BucketAddress:
    """A part of a bucket that no other test has."""
    return rgw


def _part(bucket: BucketAddress, request: pytest.FixtureRequest) -> BucketAddress:
    return replace(bucket, prefix=f"{bucket.prefix}{abs(hash(request.node.nodeid)):x}/")
