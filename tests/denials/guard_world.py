"""Run a piece of tool code under the guard, in a process of its own."""

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.outcome import Denial

ROOT = Path(__file__).parents[2]

# The audit hook stays for good, so the guard is only ever installed in a process made for one test.
CHILD = """
import json, os, sys, traceback
from pathlib import Path
from sandbox.denials.recognise import explain
from sandbox.denials.install import install_guard
from sandbox.denials.judge import GuardDenied
from sandbox.denials.paths import PathRules

given = json.load(sys.stdin)
home, other, outside = (Path(given[name]) for name in ("home", "other", "outside"))
rules = PathRules(home=home if given["bound"] else None, homes=(home.parent,))
forwarded = []
recorder = install_guard(rules, forwarded.append)
names = {"home": home, "other": other, "outside": outside, "forwarded": forwarded, "value": None}
names["GuardDenied"] = GuardDenied
answer = {"value": None, "error": None}
try:
    exec(compile(given["code"], "<tool>", "exec"), names)
except BaseException as error:
    # Before anything else touches files, as the report itself may.
    denial = explain(error, rules, databases=recorder.databases())
    answer["error"] = {
        "kind": type(error).__name__,
        "guard": isinstance(error, GuardDenied),
        "filename": os.fsdecode(getattr(error, "filename", None) or ""),
        "text": str(error),
        "explained": denial and [denial.operation, denial.path, denial.layer],
        "trace": traceback.format_exc(),
    }
answer["value"] = names["value"]
answer["denials"] = [[d.operation, d.path, d.layer] for d in recorder.denials()]
os.write(given["answer"], json.dumps(answer).encode())
"""


@dataclass(frozen=True)
class Failure:
    """An exception that left the code of a guarded child."""

    kind: str
    guard: bool
    filename: str
    text: str
    explained: Denial | None
    trace: str


@dataclass(frozen=True)
class Report:
    """Result of a guarded child."""

    value: object
    error: Failure | None
    denials: tuple[Denial, ...]


@dataclass(frozen=True)
class World:
    """A home, the home of somebody else, and a folder that is not a home."""

    home: Path
    other: Path
    outside: Path

    def run(self, code: str, *, bound: bool = True) -> Report:
        """Run `code` under the guard in a new interpreter, with the home as its current folder."""
        return _run(self, textwrap.dedent(code), bound=bound)


def _run(world: World, code: str, *, bound: bool) -> Report:
    read, write = os.pipe()
    fields = {
        "home": str(world.home),
        "other": str(world.other),
        "outside": str(world.outside),
        "bound": bound,
        "code": code,
        "answer": write,
    }
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}",
        "HOME": str(world.home),
        "TMPDIR": str(world.home),
        "MPLCONFIGDIR": str(world.home / "matplotlib"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", CHILD],
        input=json.dumps(fields),
        text=True,
        capture_output=True,
        cwd=world.home,
        env=environment,
        pass_fds=[write],
        timeout=180,
        check=False,
    )
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    assert child.returncode == 0, child.stderr
    return _report(json.loads(text))


def _report(answer: dict[str, Any]) -> Report:
    error = answer["error"]
    if error is not None:
        error["explained"] = error["explained"] and _denial(error["explained"])
        error = Failure(**error)
    return Report(answer["value"], error, tuple(map(_denial, answer["denials"])))


def _denial(fields: list[str]) -> Denial:
    operation, path, layer = fields
    return Denial(operation=operation, path=path, layer=layer)


def furnish(folder: Path) -> None:
    """Put in place what the acts under test work on."""
    (folder / "empty").mkdir(parents=True, exist_ok=True)
    (folder / "file").write_text("text")
    if not (folder / "link").is_symlink():
        (folder / "link").symlink_to("file")
