"""Fixtures for results: a home with a descriptor, and a shelf in place of the store."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from result_fakes import FakeHome, Shelf


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[FakeHome]:
    path = tmp_path / "alice"
    path.mkdir(mode=0o700)
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY)
    yield FakeHome(path, fd)
    os.close(fd)
