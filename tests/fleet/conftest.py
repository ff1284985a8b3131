"""A bucket on a real S3, and a fleet over it."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fleet_world import World, world_in
from s3_servers import with_bucket

from runner.store.s3.bucket import BucketAddress

_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def fleet_bucket() -> BucketAddress:
    """A bucket on Ceph RGW, which runs until no test run needs it."""
    command = [str(_ROOT / "scripts/rgw"), "start", "--with", str(os.getpid())]
    started = subprocess.run(command, capture_output=True, text=True, check=False)
    assert started.returncode == 0, started.stderr
    server = json.loads(started.stdout)
    os.environ["AWS_ACCESS_KEY_ID"] = server["access_key"]
    os.environ["AWS_SECRET_ACCESS_KEY"] = server["secret_key"]
    os.environ["AWS_ENDPOINT_URL_S3"] = server["endpoint"]
    return with_bucket(server["endpoint"], server["access_key"], server["secret_key"])


@pytest.fixture
def world(tmp_path: Path, fleet_bucket: BucketAddress, request: pytest.FixtureRequest) -> Iterator[World]:
    """A fleet of a test's own, as yet without nodes."""
    part = replace(fleet_bucket, prefix=f"{fleet_bucket.prefix}{abs(hash(request.node.nodeid)):x}/")
    with world_in(tmp_path, part) as made:
        yield made
