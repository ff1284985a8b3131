"""The suite of all stores over the ones that need no server."""

from pathlib import Path

import pytest
from suite import Clock, MakeStore, StoreSuite

from runner.store.local.blobs import LocalBlobs
from runner.store.retention import RetentionRules
from runner.store.store import BlobStore


class TestLocal(StoreSuite):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> MakeStore:
        def make(rules: RetentionRules, clock: Clock) -> BlobStore:
            return BlobStore(LocalBlobs(tmp_path / "store"), rules, clock=clock)

        return make


class TestMemory(StoreSuite):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        def make(rules: RetentionRules, clock: Clock) -> BlobStore:
            return BlobStore(rules=rules, clock=clock)

        return make
