"""`runner doctor` asks a bucket whether it can be used, and tells what to do where it cannot."""

from pathlib import Path

import pytest
from s3_servers import CuttingProxy

from runner.doctor.report import DoctorLine, Level, report
from runner.settings.settings import Settings
from runner.settings.sources import load
from runner.store.s3.bucket import BucketAddress
from runner.store.s3.health import fault_of

pytestmark = [pytest.mark.needs_s3, pytest.mark.release]


def settings_for(address: BucketAddress, folder: Path, **changes: str) -> Settings:
    return load(
        {
            "store": f"s3://{address.bucket}/some/where",
            "state_dir": folder,
            **changes,
        }
    )


def line_for(settings: Settings) -> DoctorLine | None:
    return next((line for line in report(settings).lines if line.name == "bucket"), None)


def test_a_bucket_that_answers_is_well(rgw: BucketAddress, tmp_path: Path) -> None:
    line = line_for(settings_for(rgw, tmp_path))

    assert line is not None
    assert (line.section, line.level) == ("store", Level.OK)
    assert line.detail == f"s3://{rgw.bucket}/some/where: answers"


def test_absent_bucket_is_reported_missing_with_its_cure(rgw: BucketAddress, tmp_path: Path) -> None:
    line = line_for(settings_for(rgw, tmp_path, store="s3://no-such-bucket-here"))

    assert line is not None
    assert line.level is Level.MISSING
    assert line.detail == "s3://no-such-bucket-here: list failed with NoSuchBucket"
    assert "make the bucket" in str(line.cure)


def test_a_server_that_is_away_is_said_to_be(
    rgw: BucketAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CuttingProxy(rgw, cut_after=0) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", str(proxy.address.endpoint))
        fault = fault_of(settings_for(proxy.address, tmp_path))

    assert fault is not None
    assert "AWS_ENDPOINT_URL_S3" in fault.cure


def test_a_local_store_has_no_bucket(tmp_path: Path) -> None:
    assert line_for(load({"store": tmp_path.as_uri(), "state_dir": tmp_path / "state"})) is None
