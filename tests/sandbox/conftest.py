"""Run a function in a real process, with and without the layers, and report how it went."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confined_world import Confined, World, make_world
from forked import NOBODY, Function, Report, run_in_child


@pytest.fixture
def unconfined() -> Callable[[Function], Report]:
    """Run a function in a child without any layer: the control of a denial."""
    return lambda function: run_in_child(function, lambda: None)


@pytest.fixture
def confined() -> Confined:
    """Run a function behind every layer: `confined(policy, function, without=..., uid=...)`."""
    return Confined()


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A user's home and what lies around it."""
    return make_world(tmp_path)


@pytest.fixture
def plain_world() -> Iterator[World]:
    """The same, owned by and open to a user without privileges."""
    top = Path(tempfile.mkdtemp(prefix="plain-world-"))
    made = make_world(top)
    if os.getuid() == 0:
        for path in (top, *top.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
    yield made
    shutil.rmtree(top)
