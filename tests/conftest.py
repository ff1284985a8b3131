"""For all tests: nobody is called slow on a busy machine, and the files that take longest begin first."""

import pytest
from hypothesis import settings

# What hangs is ended by pytest-timeout.
settings.register_profile("busy", deadline=None)
settings.load_profile("busy")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files marked `long`: one that began last would keep all others waiting for it."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
