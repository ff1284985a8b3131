"""A user for one test, whom nobody else has."""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["somebody"]


@contextmanager
def somebody() -> Iterator[str]:
    """Yield the name of a user that nobody else has; the home is removed afterwards."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    yield name
    shutil.rmtree(f"/tmp/{name}", ignore_errors=True)
