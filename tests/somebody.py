"""A user for one test only."""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["somebody"]


@contextmanager
def somebody() -> Iterator[str]:
    """Yield a unique user name; the home is removed afterwards."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    yield name
    shutil.rmtree(f"/tmp/{name}", ignore_errors=True)
