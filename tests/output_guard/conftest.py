"""A store in memory, small enough to be read: what the guard's tests look into."""

import pytest
from guard_shelf import Shelf


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()
