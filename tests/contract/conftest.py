"""Fixtures for results: a home with a descriptor, and a shelf that stands for the store."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest


@dataclass(frozen=True)
class FakeHome:
    path: Path
    fd: int


@dataclass(frozen=True)
class Kept:
    id: str
    name: str
    mime: str
    size: int
    sha256: str
    s3_key: str


@dataclass
class Shelf:
    """Keeps files in memory as the local store does on disk: one name, one file."""

    files: dict[str, bytes] = field(default_factory=dict)

    def __call__(self, fd: int, *, name: str, mime: str) -> Kept:
        content = b"".join(iter(lambda: os.read(fd, 65536), b""))
        self.files[name] = content
        digest = hashlib.sha256(content).hexdigest()
        return Kept(
            id=f"art_{digest[:12]}",
            name=name,
            mime=mime,
            size=len(content),
            sha256=digest,
            s3_key=f"alice/artifacts/20240827/{name}",
        )


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
