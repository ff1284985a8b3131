import os
from pathlib import Path

import pytest
from guard_world import World, furnish


@pytest.fixture
def world(tmp_path: Path) -> World:
    top = Path(os.path.realpath(tmp_path))
    made = World(top / "homes" / "alice", top / "homes" / "bob", top / "outside")
    for folder in (made.home, made.other, made.outside):
        furnish(folder)
    return made
