"""The suite of all stores over the ones that need no server."""

from pathlib import Path

import pytest
from suite import Clock, MakeStore, StoreSuite

from runner.store.local.store import LocalStore
from runner.store.memory import MemoryStore
from runner.store.retention import RetentionRules


class TestLocal(StoreSuite):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> MakeStore:
        def make(rules: RetentionRules, clock: Clock) -> LocalStore:
            return LocalStore(tmp_path / "store", rules, clock)

        return make


class TestMemory(StoreSuite):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        def make(rules: RetentionRules, clock: Clock) -> MemoryStore:
            return MemoryStore(rules, clock=clock)

        return make
