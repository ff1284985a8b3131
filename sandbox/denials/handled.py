"""Denials in errors that a program handles, so that nobody else would hear of them: seen as they are handled.

What a library in C or a program was denied is in the words of an error only (`words`), and the patches do
not see it. Where the tool lets the error pass, `explain` finds it at the end of the call; where it does
not, this does. The interpreter tells of errors that are handled from Python 3.12 on, for half a microsecond
each; before that nothing does at a bearable cost. What native code keeps to itself becomes no error, and is
seen by neither.

Source: PEP 669; Python documentation, `sys.monitoring`; requirement S1-102.
"""

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from types import CodeType

from sandbox.denials.judge import GuardDenied, Judge
from sandbox.denials.paths import PathRules
from sandbox.denials.recognise import FILE_OPERATION, explain
from sandbox.denials.record import Recorder

__all__ = ["install"]

Handled = Callable[[CodeType, int, BaseException], object]

# The others have owners by name: debuggers, coverage, profilers, optimisers.
_FREE_IDS = (4, 3)
_KINDS = (OSError, sqlite3.Error, subprocess.CalledProcessError)
# The interpreter looks for modules where it may not, and the patches say by themselves what was tried.
_EXPECTED_BY = ("<frozen", os.path.dirname(__file__))
# Libraries ask here what machine they are on; the interpreter caches bytecode wherever it imports from.
_QUIET = ("/sys/", "__pycache__")


def install(judge: Judge, rules: PathRules, recorder: Recorder) -> None:
    """Look at each error that is handled in this process from now on; nothing, before Python 3.12."""
    if sys.version_info >= (3, 12):
        _listen(_FREE_IDS, _looking(judge, rules, recorder))


def _looking(judge: Judge, rules: PathRules, recorder: Recorder) -> Handled:
    def handled(code: CodeType, _offset: int, error: BaseException) -> None:
        if not isinstance(error, _KINDS) or isinstance(error, GuardDenied):
            return
        if code.co_filename.startswith(_EXPECTED_BY):
            return
        # Whatever goes wrong here would become an error of the program, at a place where it expects none.
        with contextlib.suppress(Exception):
            denial = explain(error, rules, databases=recorder.databases())
            if denial is None or denial.operation != FILE_OPERATION or recorder.has(denial.path):
                return
            if not any(part in denial.path for part in _QUIET):
                judge.report(denial.operation, denial.path, layer=denial.layer)

    return handled


if sys.version_info >= (3, 12):

    def _listen(ids: Sequence[int], handled: Handled) -> None:
        """Be told of handled errors, under the first id that nobody has; under none, where all are taken."""
        monitoring = sys.monitoring
        for number in ids:
            with contextlib.suppress(ValueError):
                monitoring.use_tool_id(number, "toolcell")
                monitoring.register_callback(number, monitoring.events.EXCEPTION_HANDLED, handled)
                monitoring.set_events(number, monitoring.events.EXCEPTION_HANDLED)
                return
