"""Data that pydocket reads from Redis: plain values that need no import."""

import ast
import pickle
from importlib.util import find_spec
from pathlib import Path

import cloudpickle
import docket.execution
import docket.strikelist
import pytest

from runner.fleet.internals.plain_pickles import read_plain_pickles_only

# The last asks for the result of a task, which nothing of ours does; so does the command line.
NOT_READ = {"docket.py", "cli/__init__.py", "cli/_support.py", "worker.py"}


class _Harmful:
    def __init__(self, touched: Path) -> None:
        self.touched = touched

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.touched,)


def test_a_record_that_names_code_is_not_loaded(tmp_path: Path) -> None:
    harmful = cloudpickle.dumps(_Harmful(tmp_path / "ran"))
    # As pydocket would: it runs.
    cloudpickle.loads(harmful)
    assert (tmp_path / "ran").exists()
    (tmp_path / "ran").unlink()

    read_plain_pickles_only()

    for module in (docket.execution, docket.strikelist):
        with pytest.raises(pickle.UnpicklingError, match="names"):
            vars(module)["cloudpickle"].loads(harmful)
    assert not (tmp_path / "ran").exists()


def test_sent_values_are_loaded() -> None:
    read_plain_pickles_only()
    reader = vars(docket.execution)["cloudpickle"]

    assert reader.loads(cloudpickle.dumps(("a text",))) == ("a text",)
    assert reader.loads(reader.dumps({})) == {}


def test_no_other_module_of_pydocket_unpickles() -> None:
    spec = find_spec("docket")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent

    readers = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        if any(
            isinstance(node, ast.Attribute)
            and node.attr in ("loads", "load")
            and isinstance(node.value, ast.Name)
            and node.value.id in ("cloudpickle", "pickle")
            for node in ast.walk(ast.parse(path.read_text()))
        )
    }

    assert readers - NOT_READ == {"execution.py", "strikelist.py"}
