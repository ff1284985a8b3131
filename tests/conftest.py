"""For all tests: what they need, nobody called slow on a busy machine, and the longest files first."""

import pytest
from hypothesis import settings
from needs import SLOW, needs_of_fixtures, needs_of_module

# What hangs is ended by pytest-timeout.
settings.register_profile("busy", deadline=None)
settings.load_profile("busy")


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test with what it needs, before tests are chosen by markers."""
    names = frozenset(getattr(item, "fixturenames", ()))
    for marker in needs_of_module(item.path) | needs_of_fixtures(item.path.parent, names):
        item.add_marker(marker)
    if item.path.parent.name in SLOW:
        item.add_marker("slow")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files marked `long`: one that began last would keep all others waiting for it."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
