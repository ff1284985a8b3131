"""A pool of workers that stay with their user."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pools import forkserver_of, reusing_pool_of

from sandbox.host.forkserver import Forkserver
from sandbox.host.pool import Pool


@pytest.fixture(scope="module")
def program() -> str:
    """Name of the program, in `tests/programs`, whose workers a test leases."""
    return "keeping"


@pytest.fixture(scope="module")
async def forkserver(program: str) -> AsyncIterator[Forkserver]:
    async with forkserver_of(program) as server:
        yield server


@pytest.fixture
async def pool(forkserver: Forkserver, tmp_path: Path) -> AsyncIterator[Pool]:
    async with reusing_pool_of(forkserver, tmp_path) as it:
        yield it
