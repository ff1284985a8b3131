"""The S3 store keeps what every store promises, on two servers that differ."""

import pytest
from suite import Clock, MakeStore, StoreSuite

from runner.store.retention import RetentionRules
from runner.store.s3.bucket import BucketAddress
from runner.store.s3.store import S3Store

pytestmark = pytest.mark.needs_s3


class TestS3(StoreSuite):
    @pytest.fixture
    def make_store(self, s3: BucketAddress) -> MakeStore:
        def make(rules: RetentionRules, clock: Clock) -> S3Store:
            return S3Store(s3, rules=rules, clock=clock)

        return make
