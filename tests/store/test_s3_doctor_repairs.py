"""`runner doctor` in a shell, over a bucket whose records are lost: it says so, and removes no byte."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import ROOT, outer_environment

from runner.store.s3.bucket import Bucket, BucketAddress

pytestmark = [pytest.mark.needs_s3, pytest.mark.release]

# A record counts as lost when its artifact is five minutes old; here, at once.
AT_ONCE = """
from datetime import timedelta
from runner.store.s3 import health
health.SETTLED_AFTER = timedelta(seconds=-5)
from runner.cli.app import main
main()
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(rgw: BucketAddress, tmp_path: Path) -> Run:
    """Run a command at once over the bucket, as a user."""
    environment = outer_environment() | {
        "RUNNER_STATE_DIR": str(tmp_path / "state"),
        "RUNNER_STORE": f"s3://{rgw.bucket}/{rgw.prefix.rstrip('/')}",
        "AWS_ENDPOINT_URL_S3": str(rgw.endpoint),
        "PYTHONPATH": str(ROOT),
    }

    def ran(user: str, *words: str | Path) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-c", AT_ONCE, *map(str, words)],
            env=environment | {"RUNNER_USER": user},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return ran


def test_doctor_counts_lost_records_and_restored_ones_work(
    rgw: BucketAddress, run: Run, tmp_path: Path
) -> None:
    names = {user: [f"{user}.csv", f"{user} 2.csv"] for user in ("ann", "bob")}
    for user, files in names.items():
        for name in files:
            (tmp_path / name).write_text(f"a,{name}\n" * 100)
            assert run(user, "files", "put", tmp_path / name).returncode == 0
    before = run("ann", "doctor")

    bucket, lost = Bucket(rgw), dict[str, bytes]()
    for item in list(bucket.list(rgw.prefix)):
        if "/records/" in item.key:
            found = bucket.get(item.key)
            assert found is not None
            lost[item.key] = found[0]
            bucket.delete(item.key)
    empty = run("ann", "files", "ls")
    reported = run("ann", "doctor")
    run("ann", "doctor", "--repair")
    for key, content in lost.items():
        bucket.put(key, content)
    after = run("ann", "doctor")

    assert "each file has its record" in before.stdout
    assert "ann.csv" not in empty.stdout
    assert "4 files have lost their record" in reported.stdout
    assert reported.returncode != 0
    assert "each file has its record" in after.stdout
    for user, files in names.items():
        for name in files:
            copy = tmp_path / f"copy of {name}"
            assert run(user, "files", "get", name, "--out", copy).returncode == 0
            assert copy.read_bytes() == (tmp_path / name).read_bytes()
