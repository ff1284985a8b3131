"""Imports without the collector: it stands still only while they last."""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.system.importing import import_whole


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Leave the collector as it was."""
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def planted(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> str:
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    # Noted, so that it is taken out again.
    monkeypatch.setitem(sys.modules, name, sys)
    del sys.modules[name]
    return name


def test_garbage_collector_is_paused_only_during_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = planted(tmp_path, monkeypatch, "t_collector_seen", "import gc\nSEEN = gc.isenabled()\n")
    assert gc.isenabled()

    module = import_whole(name)

    assert (module.SEEN, gc.isenabled()) == (False, True)
    assert gc.get_freeze_count() > 0
    assert gc.get_threshold()[0] > 10_000


def test_failed_import_leaves_the_collector_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = planted(tmp_path, monkeypatch, "t_collector_lost", "raise ValueError('not today')\n")

    with pytest.raises(ValueError, match="not today"):
        import_whole(name)

    assert gc.isenabled()
