"""Immortal objects: descendants do not copy what they only read, and everything goes on as before."""

import json
import subprocess
import sys
from typing import Any

from immortals import HAS_IMMORTALS

COPIES = """
import json, os
from sandbox.inside.immortal import make_immortal

def copied_kib():
    with open("/proc/self/smaps_rollup") as facts:
        return next(int(line.split()[1]) for line in facts if line.startswith("Private_Dirty:"))

def copied_by_looking_at(things):
    read, write = os.pipe()
    if os.fork() == 0:
        before = copied_kib()
        for thing in things:
            pass
        os.write(write, str(copied_kib() - before).encode())
        os._exit(0)
    os.wait()
    return int(os.read(read, 100))

things = [[] for _ in range(20_000)]
before = copied_by_looking_at(things)
made = make_immortal()
print(json.dumps({"before": before, "made": made, "after": copied_by_looking_at(things)}))
"""

PARTS = """
import json, sys
from sandbox.inside.immortal import make_immortal

def outer():
    def inner():
        return "a constant that is not a name"
    return inner

code = outer.__code__
inner = next(part for part in code.co_consts if hasattr(part, "co_consts"))
constant = next(part for part in inner.co_consts if isinstance(part, str))
make_immortal()
parts = [outer, code, code.co_consts, code.co_names, inner, inner.co_consts, constant]
print(json.dumps([sys.getrefcount(part) == sys.getrefcount(None) for part in parts]))
"""

GOES_ON = """
import gc, weakref
from sandbox.inside.immortal import make_immortal

class Thing:
    pass

ended = []

def count(name):
    try:
        yield 1
        yield 2
    finally:
        ended.append(name)

counting, given_up = count("counting"), count("given up")
next(counting), next(given_up)
old = Thing()
old.itself = old
gone = weakref.ref(old)
made = make_immortal()
make_immortal()
new = Thing()
weakref.finalize(new, ended.append, "new")
del new, old, given_up
gc.collect()
try:
    raise LookupError("seen")
except LookupError as error:
    seen = str(error)
count.__code__ = count.__code__.replace(co_name="other")
print(next(counting), next(counting, "end"), sorted(ended), seen, (gone() is None) is (made == 0))
"""


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_reading_preforked_objects_copies_few_pages_if_immortal() -> None:
    report: dict[str, Any] = json.loads(run(COPIES))

    assert report["before"] > 1000
    if HAS_IMMORTALS:
        assert report["made"] > 20_000
        assert report["after"] < report["before"] / 10
    else:
        assert report["made"] == 0
        assert report["after"] > 1000


def test_the_parts_of_code_are_immortal_too() -> None:
    assert json.loads(run(PARTS)) == [HAS_IMMORTALS] * 7


def test_program_behaves_as_before() -> None:
    assert run(GOES_ON) == "2 end ['counting', 'given up', 'new'] seen True\n"
