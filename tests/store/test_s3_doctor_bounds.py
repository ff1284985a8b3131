"""Limits of a bucket listing by `runner doctor`, and its report, with a real S3 server."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from test_s3_doctor import settings_for

from runner.doctor.report import DoctorLine, Level, report
from runner.settings.settings import Settings
from runner.store.s3.bucket import Bucket, BucketAddress
from runner.store.s3.health import Lost, lost_records

pytestmark = [pytest.mark.needs_s3, pytest.mark.release]

USERS = ("ann", "ann.b", "bob", "cem")
FILES = 3


@pytest.fixture
def bucket(rgw: BucketAddress, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket in which each user has files with their records, but for one file of `cem`."""
    # A record counts as lost when its artifact is five minutes old; here, at once.
    monkeypatch.setattr("runner.store.s3.health.SETTLED_AFTER", timedelta(seconds=-5))
    bucket = Bucket(rgw)
    for user in USERS:
        for number in range(FILES):
            bucket.put(f"{rgw.prefix}{user}/artifacts/1/t/{user}{number}", b"bytes")
            if (user, number) != ("cem", 0):
                bucket.put(f"{rgw.prefix}{user}/records/all/files/{user}{number}", b"record")
    yield bucket
    bucket.close()


@pytest.fixture
def settings(bucket: Bucket, rgw: BucketAddress, tmp_path: Path) -> Settings:
    return settings_for(rgw, tmp_path, store=f"s3://{rgw.bucket}/{rgw.prefix.rstrip('/')}")


def test_without_bounds_all_is_listed(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lost_records(settings, in_all=True) == Lost(files=1, users=4, objects=23, is_cut=False)
    monkeypatch.setattr("runner.store.s3.health.LISTED_OBJECTS", 23)
    assert lost_records(settings, in_all=False) == Lost(files=1, users=4, objects=23, is_cut=False)


@pytest.mark.parametrize(("objects", "users"), [(3, 0), (6, 1), (8, 1), (12, 2), (17, 2), (18, 3), (22, 3)])
def test_of_who_was_listed_in_part_nothing_is_said(
    settings: Settings, objects: int, users: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.store.s3.health.LISTED_OBJECTS", objects)

    assert lost_records(settings, in_all=False) == Lost(files=0, users=users, objects=objects, is_cut=True)


def test_a_listing_ends_when_its_time_is_over(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.store.s3.health.LISTED_S", 0.0)

    assert lost_records(settings, in_all=False) == Lost(files=0, users=0, objects=0, is_cut=True)


def test_the_doctor_says_where_it_stopped_and_how_to_see_all(
    settings: Settings, bucket: Bucket, rgw: BucketAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    def line(*, whole_bucket: bool) -> DoctorLine:
        lines = report(settings, whole_bucket=whole_bucket).lines
        return next(line for line in lines if line.name == "records")

    monkeypatch.setattr("runner.store.s3.health.LISTED_OBJECTS", 12)
    cut, whole = line(whole_bucket=False), line(whole_bucket=True)
    monkeypatch.setattr("runner.store.s3.health.LISTED_OBJECTS", 21)
    bucket.delete(f"{rgw.prefix}ann/records/all/files/ann0")
    lost_and_cut = line(whole_bucket=False)

    assert cut.level is Level.NOTE
    assert "the listing was cut after 12 objects, 2 users whole" in cut.detail
    assert "--whole-bucket" in str(cut.cure)
    assert (whole.level, "1 files have lost" in whole.detail, "cut" in whole.detail) == (
        Level.MISSING,
        True,
        False,
    )
    assert lost_and_cut.level is Level.MISSING
    assert "1 files have lost" in lost_and_cut.detail
    assert "cut after 21 objects, 3 users whole" in lost_and_cut.detail
    assert lost_records(settings, in_all=True).files == 2
