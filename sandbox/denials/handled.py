"""Denials in errors that a program handles, which would otherwise go unreported.

A denial in a C library or another program appears only in the text of an error (`paths_in_errors`), not to
the patches. If the tool lets the error propagate, `explain` finds it at the end of the call; otherwise this
module does. From Python 3.12 on the interpreter reports handled errors, for half a microsecond each; before
that there is no cheap way. Denials that native code ignores raise no error, so neither finds them.

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

# The other ids are reserved: for debuggers, coverage, profilers, optimisers.
_FREE_IDS = (4, 3)
_KINDS = (OSError, sqlite3.Error, subprocess.CalledProcessError)
# The interpreter searches unreadable folders for modules, and the patches report denials themselves.
_EXPECTED_BY = ("<frozen", os.path.dirname(__file__))
# Libraries read machine properties here; the interpreter caches bytecode wherever it imports from.
_QUIET = ("/sys/", "__pycache__")


def install(judge: Judge, rules: PathRules, recorder: Recorder) -> None:
    """Inspect each error that is handled in this process from now on; no effect before Python 3.12."""
    if sys.version_info >= (3, 12):
        _listen(_FREE_IDS, _looking(judge, rules, recorder))


def _looking(judge: Judge, rules: PathRules, recorder: Recorder) -> Handled:
    def handled(code: CodeType, _offset: int, error: BaseException) -> None:
        if not isinstance(error, _KINDS) or isinstance(error, GuardDenied):
            return
        if code.co_filename.startswith(_EXPECTED_BY):
            return
        # An exception here would become an error of the program, where it expects none.
        with contextlib.suppress(Exception):
            denial = explain(error, rules, databases=recorder.databases())
            if denial is None or denial.operation != FILE_OPERATION or recorder.has(denial.path):
                return
            if not any(part in denial.path for part in _QUIET):
                judge.report(denial.operation, denial.path, layer=denial.layer)

    return handled


if sys.version_info >= (3, 12):

    def _listen(ids: Sequence[int], handled: Handled) -> None:
        """Register for handled errors under the first free id; do nothing if all are taken."""
        monitoring = sys.monitoring
        for number in ids:
            with contextlib.suppress(ValueError):
                monitoring.use_tool_id(number, "toolcell")
                monitoring.register_callback(number, monitoring.events.EXCEPTION_HANDLED, handled)
                monitoring.set_events(number, monitoring.events.EXCEPTION_HANDLED)
                return
