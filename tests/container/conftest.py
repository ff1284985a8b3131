from pathlib import Path

import pytest
from dockerfiles import Dockerfile, parse

ROOT = Path(__file__).parents[2]


@pytest.fixture
def dockerfile() -> Dockerfile:
    return parse((ROOT / "Dockerfile").read_text())
